"""Why the largest errors are as large as they are, from comparing both sequences of allocations (`causes.py`)."""

import re

_FIRST_UPDATE = "a trace's first update has one microbatch, the measured one two"

REASONS: tuple[tuple[str, str], ...] = (
    (r"^legal .*gpus=2 sharding=zero1", _FIRST_UPDATE),
    (r"gpus=2 sharding=zero[23]", "FSDP2 reduces gradients on a stream of its own, whose blocks an estimate shares"),
    (r"^gpt2 .*checkpointing=full$", f"{_FIRST_UPDATE}; with one, both agree"),
    (r"^opt-125m", "transformers leaves out a mask that masks nothing; an estimate has that of padded samples"),
)  # fmt: skip
"""Patterns of configurations' ids, and the reason."""


def reason(configuration: str) -> str:
    """Return the reason for a configuration's error; empty if none is known."""
    return next((text for pattern, text in REASONS if re.search(pattern, configuration)), "")
