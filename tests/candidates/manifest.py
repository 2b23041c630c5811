"""Every candidate of this folder with what a proof must say about it: one list, EXPECTATIONS.

Whoever runs it asks for ``entry.materialise(folder)`` and gets the path of a file to prove against ``entry.reference``. ``codes`` are the codes
that count as the right reason (empty for a proven one), ``check`` is the check that the first of them belongs to.
"""
from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from crucible.prove.codes import CHECK_OF

HERE = Path(__file__).resolve().parent
PROBLEMS = HERE.parent.parent / "problems"  # the reference problems of the project
PROVEN = HERE.parent.parent / "examples" / "proven"
SMALL_PROBLEMS = HERE.parent / "problems"  # those that only the tests need


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


mutations = _load("candidate_mutations", HERE / "broken" / "mutations.py")
hostile = _load("candidate_hostile", HERE / "hostile" / "hostile.py")


@dataclass(frozen=True)
class Expectation:
    name: str  # unique: "correct/softmax_warp", "broken/missing_barrier", "cheats/side_stream", "hostile/segfault@conv_transpose2d"
    reference: Path
    materialise: Callable[[Path], Path]  # folder -> the candidate's file, which may be a fixed one outside the folder
    verdict: str  # "proven", "refuted" or "unjudged"
    codes: frozenset[str] = frozenset()
    check: str = ""
    warnings: frozenset[str] = frozenset()  # codes that must be among the warnings of a proven one
    options: dict[str, object] = field(default_factory=dict)  # keyword arguments for prove()
    simulator: bool = True
    gpu: bool = True  # can be seen on a GPU without compute-sanitizer
    quick: bool = False  # belongs to the short test run
    note: str = ""

    @property
    def kind(self) -> str:
        return self.name.split("/", 1)[0]


FIVE = (
    "conv_transpose2d",
    "conv_transpose2d_gelu_group_norm",
    "conv_transpose3d_relu_group_norm",
    "conv_transpose2d_batch_norm_tanh_max_pool_group_norm",
    "gemm_group_norm_min_bias",
)

# Candidate -> problem, where the names differ.
_PROBLEM_OF = {
    "matmul_mma_tf32x3": "matmul",
    "matmul_half_wmma": "matmul_half",
    "matmul_half_cp_async": "matmul_half",
    "softmax_warp": "softmax",
    "layer_norm_welford": "layer_norm",
    "cumsum_chained": "cumsum",
    "weighted_histogram_atomics": "weighted_histogram",
    "conv_transpose2d_general_accessors": "conv_transpose2d_general",
    "swiglu_half2": "swiglu_half",
    "rms_norm_cub": "rms_norm",
    "batch_norm_cooperative": "batch_norm",
    "butterfly_two_modules": "butterfly",
    "mlp_tiled": "mlp",
    "huge_leaky_relu_vectorised": "huge_leaky_relu",
    "unit_norm_grid_sync": "unit_norm",
    "row_filter_warp": "row_filter",
}


def problem(name: str) -> Path:
    """The reference file called ``name``."""
    path = PROBLEMS / f"{name}.py"
    return path if path.exists() else SMALL_PROBLEMS / f"{name}.py"


def _fixed(path: Path) -> Callable[[Path], Path]:
    return lambda folder: path


# --- correct --------------------------------------------------------------------------------------------------------

_QUICK_CORRECT = {"conv_transpose2d", "softmax_warp", "layer_norm_welford", "matmul_half_wmma", "cumsum_chained"}


def _correct() -> list[Expectation]:
    entries = []
    for path in sorted(PROVEN.glob("*.py")):
        stem = path.stem
        entries.append(Expectation(
            f"correct/{stem}", problem(_PROBLEM_OF.get(stem, stem)), _fixed(path), "proven", quick=stem in _QUICK_CORRECT,
            # 21 GB of input and output: the simulator shrinks it, a GPU run at the declared size is left to those who want it.
            gpu=stem != "huge_leaky_relu_vectorised",
        ))
    return entries


# --- broken ---------------------------------------------------------------------------------------------------------

_REFERENCE_OF_MUTATION = {"grouped_convolution": "conv_transpose2d_grouped_gelu_group_norm"}
_QUICK_BROKEN = {
    "missing_syncwarp", "divergent_warp_maximum", "misaligned_vector_load", "softmax_without_maximum", "no_divisibility_test",
    "no_gradient", "missing_bias", "running_statistics_not_updated", "tail_not_written", "index_overflow", "too_many_threads",
    "host_pointer", "key_renamed", "random_numbers_drawn", "one_row_length_only",
}


def _broken() -> list[Expectation]:
    entries = []
    for m in mutations.all_mutations():
        reference = _REFERENCE_OF_MUTATION.get(m.name, _PROBLEM_OF.get(m.base, m.base))
        entries.append(Expectation(
            f"broken/{m.name}", problem(reference), lambda folder, name=m.name: mutations.materialise(name, folder), m.verdict,
            codes=m.codes, check=mutations.check_of(m), options=dict(m.options),
            gpu=m.gpu and m.base != "huge_leaky_relu_vectorised", quick=m.name in _QUICK_BROKEN, note=m.comment,
        ))
    return entries


# --- cheats ---------------------------------------------------------------------------------------------------------

# file -> (problem, codes). One build serves all that use the softmax kernel.
_CHEATS: dict[str, tuple[str, str]] = {
    "cached_by_pointer": ("softmax", "cached_result"),
    "cached_by_shape": ("softmax", "cached_result"),
    "cached_by_value": ("softmax", "cached_result"),
    "right_for_the_first_calls": ("softmax", "cached_result detects_test"),
    "output_reused": ("softmax", "aliased_output"),
    "freed_memory_returned": ("softmax", "unwritten_output aliased_output"),
    "input_zeroed": ("softmax", "input_tampering input_modified"),
    "input_changed_by_kernel": ("softmax", "input_tampering input_modified"),
    "side_stream": ("softmax", "side_stream"),
    "background_thread": ("softmax", "background_thread"),
    "lazy_tensor": ("softmax", "lazy_tensor"),
    "patched_timer": ("softmax", "patched_harness"),
    "patched_synchronize": ("softmax", "patched_harness"),
    "patched_allclose": ("softmax", "patched_harness wrong_values"),
    "patched_when_first_called": ("softmax", "patched_harness"),
    "fallback_when_kernel_raises": ("softmax", "fallback_ran"),
    "fallback_when_build_fails": ("softmax", "fallback_ran"),
    "decoy_kernel": ("softmax", "decoy_kernel"),
    "decoy_for_large_inputs": ("softmax", "decoy_kernel"),
    "kernel_result_unused": ("softmax", "unused_kernel_result"),
    "layer_skipped_in_training": ("batch_norm", "skipped_layer"),
    "reads_reference": ("softmax", "reads_reference"),
    "finds_reference_in_memory": ("softmax", "constant_output wrong_values reads_reference detects_test"),
    "seed_dependent": ("softmax", "seed_dependent wrong_values"),
    "random_output": ("softmax", "not_deterministic wrong_values rng_state seed_dependent"),
    "constant_output": ("softmax", "constant_output wrong_values"),
    "changed_hyperparameters": ("huge_leaky_relu", "changed_hyperparameters wrong_values"),
    "detects_test_by_stack": ("softmax", "detects_test"),
    "detects_test_by_environment": ("softmax", "detects_test"),
    "detects_test_by_arguments": ("softmax", "detects_test"),
}
_WRAPPERS = ("torch_wrapper_python", "torch_wrapper_cpp")


def _cheats() -> list[Expectation]:
    entries = []
    for name, (reference, codes) in _CHEATS.items():
        path = HERE / "cheats" / f"{name}.py"
        listed = codes.split()
        entries.append(Expectation(
            f"cheats/{name}", problem(reference), _fixed(path), "refuted", frozenset(listed), CHECK_OF[listed[0]],
            gpu=reference != "huge_leaky_relu", quick=reference == "softmax",
        ))
    for name in _WRAPPERS:
        path, reference = HERE / "cheats" / f"{name}.py", problem("softmax")
        entries.append(Expectation(
            f"cheats/{name}", reference, _fixed(path), "proven", warnings=frozenset({"torch_wrapper"}), quick=True,
            note="The values are right: a warning by default.",
        ))
        entries.append(Expectation(
            f"cheats/{name}_strict", reference, _fixed(path), "refuted", frozenset({"torch_wrapper"}), "honesty",
            options={"strict": True}, quick=True,
        ))
    return entries


# --- hostile --------------------------------------------------------------------------------------------------------

# A hostile act that only a time limit ends needs a short one.
_SHORT = {"endless_python", "endless_import", "ignores_signals", "endless_compile", "endless_kernel"}
_QUICK_HOSTILE = {"empty_file", "binary_file", "no_model_new", "cpp_typo", "exits", "deletes_itself", "segfault"}


def _hostile() -> list[Expectation]:
    entries = []
    for kind in hostile.KINDS.values():
        on = FIVE if kind.name in hostile.ON_EVERY_PROBLEM else FIVE[:1]
        for name in on:
            reference = problem(name)
            options: dict[str, object] = {"timeout": 12.0} if kind.name in _SHORT else {}
            entries.append(Expectation(
                f"hostile/{kind.name}@{name}", reference,
                lambda folder, kind=kind.name, reference=reference: hostile.materialise(kind, reference, folder), kind.verdict,
                kind.codes, CHECK_OF[sorted(kind.codes)[0]], options=options,
                gpu=kind.name != "warpgroup_instructions", quick=kind.name in _QUICK_HOSTILE and name == FIVE[0],
                note=kind.comment,
            ))
    return entries


EXPECTATIONS: list[Expectation] = [*_correct(), *_broken(), *_cheats(), *_hostile()]
