"""The build cache: published whole or not at all, once."""

import os
import threading

import pytest

from crucible.build import cache


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CRUCIBLE_CACHE", str(tmp_path / "cache"))


def test_key_tells_parts_apart():
    assert cache.content_key("ab", "c") != cache.content_key("a", "bc")
    assert cache.content_key("ab", "c") == cache.content_key(b"ab", "c")


def test_entry_is_built_once_and_whole():
    calls = []

    def build(folder):
        calls.append(folder)
        (folder / "x").write_text("done")

    places = {cache.entry("kind", "k", build) for _ in range(3)}
    assert len(calls) == 1
    assert (places.pop() / "x").read_text() == "done"


def test_failed_build_leaves_nothing_and_is_tried_again():
    def bad(folder):
        (folder / "half").write_text("half")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        cache.entry("kind", "k", bad)
    assert not cache.entry_path("kind", "k").exists()
    assert [p for p in cache.entry_path("kind", "k").parent.iterdir() if not p.name.endswith(".lock")] == []
    assert cache.entry("kind", "k", lambda folder: (folder / "x").write_text("1") and None).is_dir()


def test_two_threads_build_one_entry():
    calls = []
    barrier = threading.Barrier(2)

    def build(folder):
        calls.append(1)
        (folder / "x").write_text("done")

    def work():
        barrier.wait()
        cache.entry("kind", "race", build)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(calls) == 1


def test_only_the_newest_are_kept():
    for age, name in enumerate("abcd"):
        place = cache.entry("big", name, lambda folder: None)
        os.utime(place, (age, age))
    cache.keep_newest("big", 2)
    assert [cache.entry_path("big", name).exists() for name in "abcd"] == [False, False, True, True]
