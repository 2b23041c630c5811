"""The sandbox, for real: every way in which a child can end, and every wall, at each level of isolation."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from crucible.prove.jail import landlock, namespaces
from crucible.prove.sandbox import Child, ChildDied, Limits, serve

pytestmark = pytest.mark.quick

MIB = 1 << 20
SOURCE = Path(__file__).resolve().parents[2] / "src"

# Runs whatever it is sent: the candidate.
WORKER = """
from crucible.prove.sandbox import serve

def handler(message):
    names = {}
    exec(message["code"], names)
    return {"result": names.get("result")}

serve(handler)
"""

LEVELS = {
    "all walls": (),
    "no pid namespace": ("pid",),
    "no namespaces": ("namespaces",),
    "seccomp alone": ("namespaces", "landlock"),
    "audit hook alone": ("namespaces", "landlock", "seccomp"),
}

Start = Callable[..., Child]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    children: list[Child] = []

    def make(**options: Any) -> Child:
        limits = Limits(
            wall_s=options.pop("wall_s", 20),
            memory_bytes=options.pop("memory_bytes", 256 * MIB),
            output_bytes=options.pop("output_bytes", MIB),
            processes=options.pop("processes", 16),
            disk_bytes=options.pop("disk_bytes", 32 * MIB),
        )
        options.setdefault("env", {"PYTHONPATH": str(SOURCE)})
        child = Child([sys.executable, str(worker)], scratch=tmp_path / "scratch", limits=limits, **options)
        children.append(child)
        return child

    yield make
    for child in children:
        child.close()


def run(child: Child, code: str, **options: Any) -> Any:
    reply = child.request({"code": textwrap.dedent(code)}, **options)
    assert "error" not in reply, reply["error"]["traceback"]
    return reply["result"]


def error_of(child: Child, code: str) -> str:
    return str(child.request({"code": textwrap.dedent(code)})["error"]["type"])


def death_of(child: Child, code: str, **options: Any) -> ChildDied:
    with pytest.raises(ChildDied) as caught:
        child.request({"code": textwrap.dedent(code)}, **options)
    return caught.value


def running(marker: str) -> list[str]:
    listing = subprocess.run(["ps", "-eo", "pid,stat,args"], capture_output=True, text=True).stdout
    return [line for line in listing.splitlines() if marker in line]


# ---- ordinary work ---------------------------------------------------------------------------------------------


def test_answers_and_keeps_its_state(start: Start) -> None:
    child = start()
    assert run(child, "result = 6 * 7") == 42
    run(child, "import sys; sys.kept = [1, 2]")
    assert run(child, "import sys; result = sys.kept") == [1, 2]


def test_large_messages_both_ways(start: Start) -> None:
    text = "x" * (3 * MIB)
    assert run(start(), f"result = len({text!r}) * 'y'") == "y" * len(text)


def test_a_handler_that_raises_answers_with_the_error(start: Start) -> None:
    reply = start().request({"code": "1 / 0"})
    assert reply["error"]["type"] == "ZeroDivisionError"
    assert "division" in reply["error"]["message"]


def test_output_is_kept_to_its_end(start: Start) -> None:
    child = start()
    run(child, "import sys; print('x' * 200_000); print('to stdout'); print('to stderr', file=sys.stderr)")
    output = child.output()
    assert output.endswith("to stdout\nto stderr\n")
    assert len(output) <= 64 << 10


def test_tick_is_called_while_waiting(start: Start) -> None:
    ticks: list[float] = []
    run(start(), "import time; time.sleep(0.5)", tick=ticks.append)
    assert len(ticks) >= 3 and ticks == sorted(ticks)


def test_runs_in_its_scratch_folder_with_its_own_home(start: Start, tmp_path: Path) -> None:
    cwd, home, temporary = run(
        start(), "import os, tempfile; result = [os.getcwd(), os.path.expanduser('~'), tempfile.gettempdir()]"
    )
    scratch = str((tmp_path / "scratch").resolve())
    assert [cwd, home, temporary] == [scratch, scratch + "/home", scratch + "/tmp"]


def test_secrets_in_the_environment_stay_outside(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "x")
    monkeypatch.setenv("HARMLESS", "y")
    seen = run(start(), "import os; result = [os.environ.get('SOME_API_KEY'), os.environ.get('HARMLESS')]")
    assert seen == [None, "y"]


def test_programs_can_be_run_and_compile(start: Start) -> None:
    code = """
        import subprocess, pathlib
        pathlib.Path("a.cpp").write_text("int main() { return 7; }")
        subprocess.run(["g++", "a.cpp", "-o", "a.out"], check=True)
        result = subprocess.run(["./a.out"]).returncode
    """
    child = start()
    assert run(child, code) == 7
    assert child.violations == []


def test_serve_refuses_outside_a_sandbox() -> None:
    with pytest.raises(RuntimeError, match="not started by"):
        serve(dict)


def test_a_program_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ChildDied) as caught:
        with Child(["/no/such/program"], scratch=tmp_path, limits=Limits(5, 64 * MIB)) as child:
            child.request({})
    assert caught.value.cause == "exit" and "No such file" in caught.value.detail


# ---- every cause -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "cause", "words"),
    [
        ("import os; os._exit(3)", "exit", "status 3"),
        ("import sys; sys.exit(4)", "exit", "status 4"),
        ("raise SystemExit", "exit", "status 0"),
        ("import ctypes; ctypes.string_at(0)", "signal", "SIGSEGV"),
        ("import os; os.abort()", "signal", "SIGABRT"),
        ("import os; os.kill(os.getpid(), 9)", "signal", "SIGKILL"),
        ("import os, time; os.closerange(3, 4096); time.sleep(9)", "protocol", "closed its connection"),
        ("import os\nfor fd in range(3, 4096):\n  try: os.write(fd, b'rubbish\\n')\n  except OSError: pass",
         "protocol", "rubbish"),
        ("import os\nfor fd in range(3, 4096):\n  try: os.write(fd, b'{\"id\": 1, \"reply\": {}}\\n')\n"
         "  except OSError: pass", "protocol", "no answer"),
        ("while True: print('x' * 1000)", "output", "printed more than 1.0 MiB"),
        ("kept = []\nwhile True: kept.append(bytearray(b'x') * (1 << 24))", "memory", "limit 256.0 MiB"),
        ("import subprocess, sys\neat = \"b = bytearray(b'x') * (400 << 20)\\nwhile 1: pass\"\n"
         "subprocess.run([sys.executable, '-c', eat])", "memory", "the largest of 2"),
        ("import os\nwhile True: os.fork()", "processes", "processes"),
        ("n = 0\nwhile True:\n  n += 1\n  open(f'{n}', 'wb').write(bytes(1 << 20))", "disk", "limit 32.0 MiB"),
        ("f = open('one', 'wb')\nwhile True: f.write(bytes(1 << 20)); f.flush()", "disk", "limit 32.0 MiB"),
        ("import os\nkept = []\nwhile True:\n  f = open('n', 'wb'); f.write(bytes(1 << 22)); f.flush()\n"
         "  os.unlink('n'); kept.append(f)", "disk", "limit 32.0 MiB"),
    ],
    ids=["os._exit", "sys.exit", "SystemExit", "segfault", "abort", "kills itself", "closes the pipes", "rubbish",
         "forged answer", "prints", "eats memory", "a child eats memory", "fork bomb", "many files", "one file",
         "unlinked files"],
)  # fmt: skip
def test_cause(start: Start, code: str, cause: str, words: str) -> None:
    child = start()
    death = death_of(child, code)
    assert death.cause == cause, death
    assert words in death.detail
    with pytest.raises(ChildDied):  # and it stays dead
        child.request({"code": ""})


def test_a_loop_that_ignores_signals_is_ended_by_the_request_timeout(start: Start) -> None:
    child = start()
    started = time.monotonic()
    death = death_of(
        child, "import signal; signal.signal(15, signal.SIG_IGN); print('on')\nwhile True: pass", timeout=0.5
    )
    assert death.cause == "time" and "0.5 s" in death.detail
    assert death.output_tail == "on\n"
    assert time.monotonic() - started < 5


def test_the_wall_clock_runs_without_the_parent(start: Start) -> None:
    child = start(wall_s=1.0)
    assert run(child, "result = 1") == 1
    time.sleep(1.3)
    assert death_of(child, "result = 2").cause == "time"


def test_a_segfault_comes_with_its_stack(start: Start) -> None:
    death = death_of(start(), "def deep():\n  import ctypes; ctypes.string_at(0)\ndeep()")
    assert "Segmentation fault" in death.detail and "in deep" in death.detail


def test_an_answer_that_came_before_the_end_counts(start: Start) -> None:
    child = start()
    run(child, "import threading, os, time; threading.Thread(target=lambda: (time.sleep(0.2), os._exit(5))).start()")
    time.sleep(0.5)
    assert "status 5" in death_of(child, "").detail


# ---- nothing is left behind --------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["all walls", "no namespaces", "audit hook alone"])
def test_daemons_do_not_survive(start: Start, level: str) -> None:
    child = start(without=LEVELS[level])
    marker = f"sleep 98{os.getpid()}"
    run(child, f"""
        import subprocess, time, os
        for _ in range(3):
            if os.fork() == 0:
                os.setsid()
                os.environ.clear()
                if os.fork() == 0:
                    os.execve("/bin/sleep", {marker.split()!r}, {{}})
                os._exit(0)
        time.sleep(0.2)
    """)  # fmt: skip
    assert len(running(marker)) == 3
    child.close()
    assert running(marker) == []


def test_no_descriptor_and_no_zombie_is_left(start: Start) -> None:
    start().close()
    before = sorted(os.listdir("/proc/self/fd"))
    for code in ("result = 1", "import os; os._exit(1)"):
        child = start()
        try:
            child.request({"code": code})
        except ChildDied:
            pass
        child.close()
        child.close()
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert [line for line in running("defunct") if f"{os.getpid()}" in line.split()] == []


def test_an_end_of_the_parent_is_the_end_of_the_child(start: Start, tmp_path: Path) -> None:
    marker = f"97{os.getpid()}"
    (tmp_path / "sleeper.py").write_text(WORKER)
    (tmp_path / "parent.py").write_text(textwrap.dedent(f"""
        import os, sys
        from pathlib import Path
        from crucible.prove.sandbox import Child, Limits
        child = Child([sys.executable, {str(tmp_path / "sleeper.py")!r}], scratch=Path({str(tmp_path / "s2")!r}),
                      limits=Limits(60, 1 << 28))
        child.request({{"code": "import subprocess; subprocess.Popen(['sleep', '{marker}'])"}})
        os._exit(9)
    """))  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    assert subprocess.run([sys.executable, str(tmp_path / "parent.py")], env=env).returncode == 9
    deadline = time.monotonic() + 5
    while running(f"sleep {marker}") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert running(f"sleep {marker}") == []


def test_the_parent_stays_responsive_beside_a_fork_bomb(start: Start) -> None:
    child = start()
    beats: list[float] = []
    death_of(child, "import os\nwhile True: os.fork()", tick=lambda _: beats.append(time.monotonic()))
    assert time.monotonic() - (beats[-1] if beats else time.monotonic()) < 5


def test_children_side_by_side_do_not_meet(start: Start) -> None:
    first, second = start(), start()
    results: dict[str, Any] = {}
    thread = threading.Thread(target=lambda: results.update(dead=death_of(first, "import os; os.abort()")))
    thread.start()
    assert run(second, "result = 5") == 5
    thread.join()
    assert results["dead"].cause == "signal"
    assert run(second, "result = 6") == 6


# ---- the walls -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_hidden_paths_cannot_be_read(start: Start, tmp_path: Path, level: str) -> None:
    folder = tmp_path / "hidden"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "answer.txt").write_text("42")
    (folder / "shown").mkdir()
    (folder / "shown" / "hint.txt").write_text("41")
    single = tmp_path / "reference.py"
    single.write_text("class Model: pass")
    child = start(hidden=[folder, single], readable=[folder / "shown"], without=LEVELS[level])
    for path in (folder / "deep" / "answer.txt", single):
        assert error_of(child, f"open({str(path)!r}).read()") in ("FileNotFoundError", "PermissionError")
        assert f"tried to read {path.resolve()}" in child.violations
    assert run(child, f"result = open({str(folder / 'shown' / 'hint.txt')!r}).read()") == "41"
    assert (folder / "deep" / "answer.txt").read_text() == "42"
    if level in ("all walls", "no pid namespace", "no namespaces"):  # native code is held, too
        assert run(child, f"import subprocess; result = subprocess.run(['cat', {str(single)!r}]).returncode") != 0
        assert run(child, f"import os; os.symlink({str(single)!r}, 'link'); result = os.system('cat link')") != 0


@pytest.mark.parametrize("level", LEVELS)
def test_nothing_outside_can_be_changed(start: Start, tmp_path: Path, level: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    precious = outside / "precious.txt"
    precious.write_text("here")
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    child = start(writable=[allowed], without=LEVELS[level])
    p = str(precious)
    for attempt in (f"open({p!r}, 'w')", f"os.remove({p!r})", f"os.rename({p!r}, {p + 'x'!r})",
                    f"os.mkdir({str(outside / 'new')!r})", f"os.truncate({p!r}, 0)"):  # fmt: skip
        assert error_of(child, "import os; " + attempt) in ("PermissionError", "OSError"), attempt
    assert precious.read_text() == "here" and sorted(os.listdir(outside)) == ["precious.txt"]
    run(child, f"open({str(allowed / 'new')!r}, 'w').write('x'); open('mine', 'w').write('y')")
    assert (allowed / "new").read_text() == "x" and (tmp_path / "scratch" / "mine").read_text() == "y"
    if level != "audit hook alone":
        assert run(child, f"import os; result = os.system('echo no > {p}')") != 0
        assert precious.read_text() == "here"
    assert f"tried to write {precious.resolve()}" in child.violations
    assert f"tried to delete {precious.resolve()}" in child.violations


def test_permissions_of_files_outside_stay(start: Start, tmp_path: Path) -> None:
    """Landlock alone would allow chmod."""
    precious = tmp_path / "precious.txt"
    precious.write_text("here")
    precious.chmod(0o640)
    assert error_of(start(), f"import os; os.chmod({str(precious)!r}, 0o777)") in ("PermissionError", "OSError")
    assert precious.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("level", LEVELS)
def test_no_network(start: Start, level: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        child = start(without=LEVELS[level])
        connect = f"import socket; s = socket.create_connection(('127.0.0.1', {port}), timeout=2)"
        assert error_of(child, connect) in ("PermissionError", "OSError", "ConnectionRefusedError")
        server.settimeout(0.1)
        with pytest.raises(TimeoutError):
            server.accept()
    assert any("network" in violation for violation in child.violations)


def test_no_other_program_is_reached_through_a_socket_file(start: Start, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        child = start()
        assert error_of(child, f"import socket; socket.socket(socket.AF_UNIX).connect({path!r})") == "PermissionError"
    assert child.violations == [f"tried to talk to another program through {os.path.realpath(path)}"]


def test_the_parent_cannot_be_seen_or_signalled(start: Start) -> None:
    child = start()
    if "pid namespace" not in child.isolation["processes"]:
        pytest.skip("no pid namespace on this machine")
    assert run(child, f"import os; result = os.path.exists('/proc/{os.getpid()}/fd')") is False or os.getpid() < 50
    assert error_of(child, f"import os; os.kill({os.getpid()}, 0)") in ("ProcessLookupError", "PermissionError")


def test_work_that_asks_for_what_is_there_is_no_violation(start: Start) -> None:
    child = start()
    run(child, "import os; os.makedirs('/usr/lib', exist_ok=True); open('/dev/null', 'w').write('x')")
    with pytest.raises(AssertionError, match="FileNotFoundError"):
        run(child, "open('/usr/no-such-file', 'r+')")
    assert child.violations == []


def test_what_is_in_force_is_said(start: Start) -> None:
    strong = start().isolation
    assert set(strong) >= {"filesystem", "hidden", "network", "processes", "memory", "privileges", "notes"}
    weak = start(without=("namespaces", "landlock", "seccomp")).isolation
    assert weak["filesystem"].startswith("audit hook")
    assert weak["notes"] == ["namespaces: switched off", "landlock: switched off", "seccomp: switched off"]


# ---- parts -----------------------------------------------------------------------------------------------------------


def test_around_covers_everything_but_the_hidden(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    for name in ("a/b/c", "a/d", "e"):
        (root / name).mkdir(parents=True)
    paths = landlock.around([str(root / "a" / "b")], [str(root / "a" / "b" / "c")])
    assert {str(root / "a" / "d"), str(root / "e"), str(root / "a" / "b" / "c")} <= set(paths)
    assert not {"/", str(root), str(root / "a"), str(root / "a" / "b")} & set(paths)
    assert landlock.around([]) == ["/"]


def test_nearest_is_the_innermost() -> None:
    assert namespaces.nearest("/a/b/c", ["/a", "/a/b", "/z"]) == "/a/b"
    assert namespaces.nearest("/ab", ["/a"]) is None


@pytest.mark.parametrize("level", ["all walls", "no namespaces"])
def test_folders_in_shared_memory(start: Start, tmp_path: Path, level: str) -> None:
    """The child has a /dev/shm of its own; folders of the parent's that it was given are there all the same."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        shared = Path(name)
        for folder in ("given", "taken", "hidden", "other"):
            (shared / folder).mkdir()
            (shared / folder / "file").write_text(folder)
        child = start(readable=[shared / "given"], writable=[shared / "taken"], hidden=[shared / "hidden"],
                      without=LEVELS[level])  # fmt: skip
        assert run(child, f"result = open({str(shared / 'given' / 'file')!r}).read()") == "given"
        run(child, f"open({str(shared / 'taken' / 'new')!r}, 'w').write('x')")
        assert (shared / "taken" / "new").read_text() == "x"
        assert error_of(child, f"open({str(shared / 'given' / 'new')!r}, 'w')") in ("PermissionError", "OSError")
        assert error_of(child, f"open({str(shared / 'hidden' / 'file')!r})") in ("PermissionError", "FileNotFoundError")
        assert sorted(os.listdir(shared / "given")) == ["file"]
        if level == "all walls":
            assert error_of(child, f"open({str(shared / 'other' / 'file')!r})") == "FileNotFoundError"
            assert f"tried to write {shared / 'given' / 'new'}" in child.violations
            assert run(child, "import multiprocessing; multiprocessing.Lock(); result = 3") == 3


def test_loopback_on_request(start: Start) -> None:
    child = start(loopback=True)
    if child.isolation["network"] != "namespace":
        pytest.skip("no network namespace on this machine")
    code = """
        import socket
        server = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(server.getsockname(), timeout=2)
        server.accept()[0].sendall(b"hello")
        result = client.recv(5).decode()
    """
    assert run(child, code) == "hello"
    assert child.violations == []
    assert error_of(child, "import socket; socket.create_connection(('192.0.2.1', 80), timeout=1)") != ""
    assert child.violations == ["tried to open a network connection to 192.0.2.1:80"]


def test_a_gpu_process_may_name_its_threads_and_no_more(start: Start) -> None:
    child = start(gpu=True)
    if child.isolation["hidden"] != "mount namespace":
        pytest.skip("no mount namespace on this machine")
    code = """
        import os
        name = f"/proc/self/task/{os.getpid()}/comm"
        open(name, "w").write("renamed")
        result = open(name).read().strip()
    """
    assert run(child, code) == "renamed"
    for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/vm/drop_caches"):
        if os.path.exists(path):
            assert error_of(child, f"open({path!r}, 'r+')") in ("PermissionError", "OSError")


def test_a_program_without_a_protocol_is_waited_for(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("nobody may read this")
    limits = Limits(20, 256 * MIB)

    def shell(command: str, timeout: float | None = None) -> tuple[int, str]:
        with Child(["sh", "-c", command], scratch=tmp_path / "s", hidden=[secret], limits=limits) as child:
            return child.wait(timeout), child.output()

    assert shell("echo said; exit 3") == (3, "said\n")
    status, said = shell(f"cat {secret}")
    assert status != 0 and "nobody may read" not in said
    with pytest.raises(ChildDied, match="SIGTERM"):
        shell("kill $$")
    with pytest.raises(ChildDied, match=r"still running after 0\.2 s"):
        shell("sleep 30", timeout=0.2)
