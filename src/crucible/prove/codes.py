"""The closed set of codes that a finding may carry: which check each belongs to, and what it does to the verdict."""

from __future__ import annotations

from typing import Literal

Verdict = Literal["proven", "refuted", "unjudged"]

BY_CHECK: dict[str, tuple[str, ...]] = {
    "loads": (
        "empty_file",
        "binary_file",
        "syntax_error",
        "no_model_new",
        "import_error",
        "compile_error",
        "load_inline_misuse",
        "unsupported_feature",
        "link_error",
        "reference_error",
        "infrastructure",
    ),
    "interface": (
        "init_signature",
        "forward_signature",
        "state_dict",
        "seed_weights",
        "load_state_dict",
        "dtype_move",
        "eval_mode",
        "changed_hyperparameters",
    ),
    "forward": (
        "wrong_values",
        "wrong_shape",
        "wrong_dtype",
        "wrong_device",
        "raises",
        "skipped_layer",
        "constant_output",
    ),
    "gradients": ("no_grad", "missing_grad", "extra_grad", "wrong_grad", "grad_raises"),
    "side_effects": (
        "buffers_not_updated",
        "buffers_wrong",
        "inputs_not_updated",
        "inputs_wrong",
        "input_modified",
        "parameter_modified",
        "rng_state",
    ),
    "sizes": ("wrong_at_other_size", "wrong_for_layout"),
    "ranges": ("range_values",),
    "determinism": ("not_deterministic",),
    "memory": (
        "out_of_bounds",
        "use_after_free",
        "host_pointer",
        "uninitialised_read",
        "unwritten_output",
        "race_shared",
        "race_global",
        "barrier_divergence",
        "warp_divergence",
        "misaligned",
        "index_overflow",
        "deadlock",
        "launch_error",
        "shared_memory_limit",
        "kernel_time",
    ),
    "honesty": (
        "cached_result",
        "aliased_output",
        "input_tampering",
        "side_stream",
        "background_thread",
        "lazy_tensor",
        "patched_harness",
        "fallback_ran",
        "decoy_kernel",
        "unused_kernel_result",
        "torch_wrapper",
        "reads_reference",
        "seed_dependent",
        "detects_test",
    ),
    "isolation": (
        "time_limit",
        "memory_limit",
        "output_limit",
        "process_limit",
        "disk_limit",
        "crashed",
        "exited",
        "writes_outside",
        "network_use",
        "deleted_file",
        "protocol",
    ),
    "architectures": ("arch_compile",),
}

CHECK_OF: dict[str, str] = {code: check for check, codes in BY_CHECK.items() for code in codes}

# The candidate was never run far enough to be right or wrong: the tool or the input is at fault, not the arithmetic.
UNJUDGED = frozenset(
    {
        "empty_file",
        "binary_file",
        "syntax_error",
        "no_model_new",
        "import_error",
        "unsupported_feature",
        "reference_error",
        "infrastructure",
    }
)


def verdict_of(code: str) -> Verdict:
    """What a finding of this code means for the verdict, when it is the reason for one."""
    if code not in CHECK_OF:
        raise KeyError(f"unknown finding code {code!r}")
    return "unjudged" if code in UNJUDGED else "refuted"
