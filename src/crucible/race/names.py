"""What contenders are called, in records and for people."""

from __future__ import annotations

EAGER, AGAIN = "eager", "eager again"
BASELINES = (EAGER, "channels_last", "compile", "max_autotune")
USUAL = (EAGER, "channels_last", "compile")
TITLES = {
    EAGER: "eager", AGAIN: "eager, again", "channels_last": "eager, channels last", "compile": "torch.compile",
    "max_autotune": "torch.compile, max-autotune",
}  # fmt: skip
