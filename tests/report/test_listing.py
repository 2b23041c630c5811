"""Listings: every line once, with its number; CUDA as CUDA; shared bodies folded."""

from __future__ import annotations

import re

import pytest
from example_records import CANDIDATE

from crucible.report.page.listing import FOLD_BEGIN, FOLD_END, listing, stretches

pytestmark = pytest.mark.quick
FUSED = f'''"""Header."""
A = r"""
#include <x>
{FOLD_BEGIN}
__device__ int f();

{FOLD_END}
int g();
"""
end = 1
'''


@pytest.mark.parametrize("text", [CANDIDATE, FUSED, "", "x = 1", "no python (", 'a = "__global__"\n', "\n\n\n",
                                  'a = """__global__\n"""\n', "x = '''\n__device__\n'''"])  # fmt: skip
def test_every_line_is_there_once(text):
    assert "".join(s.text for s in stretches(text)) == text
    number = 1
    for part in listing(text):
        assert part.first == number
        number += part.lines
        assert part.html.count('<span class="l">') == part.lines
    assert number - 1 == len(text.splitlines())


def test_languages_and_folds():
    assert [(s.language, s.first, s.folded) for s in stretches(FUSED)] == [
        ("python", 1, False), ("cuda", 3, False), ("cuda", 4, True), ("cuda", 7, False), ("python", 9, False),
    ]  # fmt: skip


def test_folds_are_those_of_generated_files():
    from crucible.emit.file import LIBRARY_BEGIN, LIBRARY_END

    assert (FOLD_BEGIN, FOLD_END) == (LIBRARY_BEGIN, LIBRARY_END)


def test_text_survives_highlighting():
    shown = "".join(re.sub(r"<[^>]*>", "", str(p.html)) for p in listing(CANDIDATE))
    assert shown.replace("&lt;", "<").replace("&#34;", '"').replace("&#39;", "'") == CANDIDATE


def test_a_marked_line_is_not_folded():
    parts = listing(FUSED, 5)
    assert not any(p.folded for p in parts)
    (marked,) = (p for p in parts if "l marked" in p.html)
    assert "__device__" in marked.html


def test_a_line_that_is_not_there_marks_nothing():
    assert not any("l marked" in p.html for p in listing(CANDIDATE, 999))
