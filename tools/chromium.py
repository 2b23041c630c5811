"""A page in a real browser: Chromium without a window, driven over its own protocol.

Used by the browser tests and by tools/screenshots.py. ``find()`` says where Chromium is, or None.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
STARTING = 60.0  # seconds
ANSWER = 60.0


class BrowserError(Exception):
    """Chromium did not start or did not answer."""


def find() -> str | None:
    """The program: CHROMIUM where it is set, else the first of the usual names."""
    given = os.environ.get("CHROMIUM")
    return given or next((p for p in map(shutil.which, NAMES) if p), None)


class Browser:
    """One browser with one page in it. A context manager."""

    def __init__(self, program: str) -> None:
        self.folder = tempfile.mkdtemp(prefix="crucible-browser-")
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                 "--hide-scrollbars", "--disable-extensions", "--disable-background-networking", "--mute-audio",
                 "--remote-debugging-port=0", "--remote-allow-origins=*", f"--user-data-dir={self.folder}"]  # fmt: skip
        self.process = subprocess.Popen([program, *flags, "about:blank"], stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)  # fmt: skip
        self.ids = itertools.count(1)
        self.events: list[dict[str, Any]] = []
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _connect(self) -> None:
        import websocket

        port = self._port()
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{port}/json/list", timeout=STARTING) as answer:
            pages = [p for p in json.load(answer) if p["type"] == "page"]
        self.socket = websocket.create_connection(pages[0]["webSocketDebuggerUrl"], timeout=ANSWER, http_no_proxy=["*"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def _port(self) -> str:
        place = Path(self.folder) / "DevToolsActivePort"
        end = time.monotonic() + STARTING
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise BrowserError(f"Chromium ended with status {self.process.returncode} when it was started")
            if place.is_file() and place.read_text().strip():
                return place.read_text().split("\n")[0]
            time.sleep(0.1)
        raise BrowserError(f"Chromium was not ready after {STARTING:g} s")

    def send(self, method: str, **given: Any) -> dict[str, Any]:
        """One request; events that come in between are kept."""
        number = next(self.ids)
        self.socket.send(json.dumps({"id": number, "method": method, "params": given}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == number:
                if "error" in message:
                    raise BrowserError(f"{method}: {message['error']['message']}")
                found: dict[str, Any] = message["result"]
                return found
            self.events.append(message)

    def open(self, page: Path, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Load a page in a window of this size, and wait until it is there."""
        self.resize(width, height)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", media="", features=scheme)
        self.events.clear()
        self.send("Page.navigate", url=page.resolve().as_uri())
        end = time.monotonic() + ANSWER
        while self.value("document.readyState") != "complete" or self.value("location.href") == "about:blank":
            if time.monotonic() > end:
                raise BrowserError(f"{page} was not loaded after {ANSWER:g} s")
            time.sleep(0.05)

    def resize(self, width: int, height: int = 900) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript is, in the page."""
        reply = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in reply:
            raise BrowserError(reply["exceptionDetails"].get("exception", {}).get("description", "an exception"))
        return reply["result"].get("value")

    def press(self, key: str) -> None:
        """A key of the keyboard, such as Enter or Tab."""
        text = {"Enter": "\r"}.get(key)
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key], **more)

    def screenshot(self, path: Path, height: int | None = None) -> None:
        """The whole page, or its first so many pixels."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": self.value("innerWidth"), "scale": 1,
                "height": min(size["height"], height or size["height"])}  # fmt: skip
        reply = self.send("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(reply["data"]))

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, exceptions, and everything that the page asked a network for."""
        found = []
        for event in self.events:
            given = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(f"exception: {given['exceptionDetails'].get('text')}")
            elif event.get("method") == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning", "assert"):
                found.append(f"console: {[a.get('value') for a in given['args']]}")
            elif event.get("method") == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
                found.append(f"log: {given['entry']['text']}")
            elif event.get("method") == "Network.requestWillBeSent":
                url = given["request"]["url"]
                if not url.startswith(("file:", "data:")):
                    found.append(f"network: {url}")
        return found


KEYS = {"Enter": 13, "Tab": 9, "Space": 32}
# Elements that reach beyond the window and are not inside a box that scrolls by itself.
OVERFLOWING = """[...document.querySelectorAll('body *')].filter(e => {
  const r = e.getBoundingClientRect();
  if (!r.width || r.right <= innerWidth + 1 && r.left >= -1) return false;
  for (let p = e; p; p = p.parentElement) {
    const scrolls = ['auto', 'scroll', 'hidden'].includes(getComputedStyle(p).overflowX);
    if (p.matches('.skip') || p !== e && scrolls) return false;
  }
  return true;
}).map(e => `${e.tagName.toLowerCase()}.${e.getAttribute('class') || ''}: ${e.textContent.trim().slice(0, 40)}`)"""
