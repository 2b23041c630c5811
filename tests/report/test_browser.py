"""Pages in a real browser: no errors, no network, nothing wider than the window, sorting by mouse and keyboard."""

from __future__ import annotations

import json
from pathlib import Path

import example_records as records
import pytest

import chromium
from crucible.prove.proof import plain
from crucible.report.page.files import report

PROGRAM = chromium.find()
pytestmark = [
    pytest.mark.quick,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium here; install it, or name it with CHROMIUM=..."),
]
WIDTHS = (400, 1600)


@pytest.fixture(scope="module")
def browser():
    with chromium.Browser(str(PROGRAM)) as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory, plan) -> dict[str, Path]:
    tmp_path = tmp_path_factory.mktemp("pages")
    store = records.sweep(tmp_path / "sweep", plan)
    long = records.race(plan)
    long.candidates[0].file = "a_very_long_name_without_any_place_to_break_it_" * 4 + ".py"
    long.candidates[0].source = f'"""Long."""\nx = "{"y" * 400}"\n'
    made = {"raced": long.to_json(), "refuted": records.refuted().to_json(), "line": records.out_of_bounds().to_json()}
    found = {}
    for name, document in made.items():
        record = tmp_path / f"{name}.json"
        record.write_text(json.dumps(plain(document)))
        found[name] = report(record, tmp_path / f"{name}.html")[0].path
    found["sweep"] = report(store, tmp_path / "sweep.html")[0].path
    return found


def test_they_render_without_errors_and_fit(browser, pages):
    for name, page in pages.items():
        for width in WIDTHS:
            for dark in (False, True):
                browser.open(page, width, dark=dark)
                where = f"{name} at {width}{', dark' if dark else ''}"
                assert browser.complaints() == [], where
                assert browser.value("document.documentElement.scrollWidth") <= width, where
                assert browser.value(chromium.OVERFLOWING) == [], where


def test_on_paper_nothing_is_cut_off(browser, pages):
    """A4 has 794 pixels; on paper nothing scrolls, so that every box must fit."""
    beyond = """[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)
        .map(e => e.tagName + ': ' + e.textContent.trim().slice(0, 60))"""
    for name, page in pages.items():
        browser.open(page, 794, dark=True)
        browser.send("Emulation.setEmulatedMedia", media="print")
        assert browser.value(beyond) == [], name
        assert browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_what_is_too_wide_is_noticed(browser, tmp_path):
    """The check above can fail."""
    page = tmp_path / "wide.html"
    page.write_text("<body><p style='width:900px'>wide</p><div style='overflow:auto'><p style='width:900px'>x</p></div>"
                    "<script>console.error('no')</script>")  # fmt: skip
    browser.open(page, 400)
    assert [x.split(".")[0] for x in browser.value(chromium.OVERFLOWING)] == ["p"]
    assert browser.complaints() == ["console: ['no']"]


def test_one_drawing_of_each_is_shown(browser, pages):
    count = "[...document.querySelectorAll('.{0}')].filter(e => e.offsetParent !== null).length"
    for width, shown, hidden in ((1600, "wide", "narrow"), (400, "narrow", "wide")):
        browser.open(pages["raced"], width)
        assert browser.value(count.format(shown)) >= 4
        assert browser.value(count.format(hidden)) == 0


def test_text_in_pictures_is_never_tiny(browser, pages):
    smallest = """Math.min(...[...document.querySelectorAll('svg text')].filter(e => e.getBoundingClientRect().width)
        .map(e => parseFloat(getComputedStyle(e).fontSize) * Math.hypot(e.getScreenCTM().a, e.getScreenCTM().b)))"""
    for width in WIDTHS:
        for name in ("raced", "refuted"):
            browser.open(pages[name], width)
            assert browser.value(smallest) >= 9.0, (name, width)


def test_the_verdict_is_the_largest_thing(browser, pages):
    sizes = "[...document.querySelectorAll('body *')].map(e => parseFloat(getComputedStyle(e).fontSize))"
    for page in pages.values():
        browser.open(page, 1600)
        verdict = browser.value("parseFloat(getComputedStyle(document.querySelector('.verdict')).fontSize)")
        assert verdict == max(browser.value(sizes)) and verdict > 40


def titles(browser) -> list[str]:
    return browser.value("[...document.querySelectorAll('tbody tr')].map(r => r.cells[0].textContent.trim())")


def test_sorting(browser, pages):
    browser.open(pages["sweep"], 1600)
    assert titles(browser) == ["a_wrong", "b/fast", "c<odd> name"]
    head = "[...document.querySelectorAll('thead button')].find(b => b.textContent === '{}')"
    browser.value(f"{head.format('problem')}.click()")
    browser.value(f"{head.format('problem')}.click()")
    assert titles(browser) == ["c<odd> name", "b/fast", "a_wrong"]
    state = "[...document.querySelectorAll('thead th')].map(h => h.getAttribute('aria-sort'))"
    assert browser.value(state)[0] == "descending" and set(browser.value(state)[1:]) == {None}
    assert browser.value("document.getElementById('sorted').textContent") == "sorted by problem, descending"
    browser.value(f"{head.format('verdict')}.focus()")
    browser.press("Enter")  # by the keyboard: refuted, not fused, proven
    assert titles(browser) == ["a_wrong", "c<odd> name", "b/fast"]
    assert browser.value(state)[:2] == [None, "ascending"]
    browser.value(f"{head.format('forward')}.click()")
    assert titles(browser)[0] == "b/fast"  # what has no time comes last, either way
    browser.value(f"{head.format('forward')}.click()")
    assert titles(browser)[0] == "b/fast"
    assert browser.complaints() == []


def test_links_lead_to_pages_and_back(browser, pages):
    browser.open(pages["sweep"], 400)
    page = browser.value("document.querySelector('tbody a').href")
    there = Path(page.removeprefix("file://"))
    assert there.is_file()
    browser.open(there, 400)
    assert browser.value("document.querySelector('.crumb a').href") == pages["sweep"].resolve().as_uri()


def test_a_screen_reader_finds_names(browser, pages):
    """Regions that scroll can be reached by the keyboard and have a name; headings go down one level at a time."""
    for page in pages.values():
        browser.open(page, 400)
        assert browser.value("[...document.querySelectorAll('.scroll, pre')].every(e => e.tabIndex === 0)")
        levels = browser.value("[...document.querySelectorAll('h1,h2,h3')].map(e => +e.tagName[1])")
        assert levels[0] == 1 and all(b - a <= 1 for a, b in zip(levels, levels[1:]))
        assert browser.value("document.querySelectorAll('main').length") == 1
