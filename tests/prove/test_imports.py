"""Workers import torch without a look for garbage, and look for it afterwards."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from crucible.prove.imports import nothing_is_garbage

pytestmark = pytest.mark.quick


def test_collecting_goes_on_afterwards():
    before = gc.get_freeze_count()
    try:
        with nothing_is_garbage():
            assert not gc.isenabled()
            kept = [[] for _ in range(100)]
        assert gc.isenabled() and gc.get_freeze_count() > before and len(kept) == 100
        with pytest.raises(ImportError), nothing_is_garbage():
            raise ImportError
        assert gc.isenabled()
    finally:
        gc.unfreeze()


def test_the_fronts_of_workers_import_no_torch():
    fronts = "crucible.prove.candidate, crucible.prove.reference_worker, crucible.sweep.job"
    script = f"import sys, {fronts}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False\n"
