"""Why the largest errors are as large as they are, from comparing both sequences of allocations (`causes.py`)."""

import re

_MEDIAN = "an estimate is the median for very first batches of unequal lengths; the measured batches are equal"

REASONS: tuple[tuple[str, str], ...] = (
    (r"^(qwen3-0.6b .*attention=eager|gpt2 .*checkpointing=full|finetune 7)", _MEDIAN),
    (r"^opt-125m", "transformers leaves out a mask that masks nothing; an estimate has that of padded samples"),
)
"""Patterns of configurations' ids, and the reason."""


def reason(configuration: str) -> str:
    """Return the reason for a configuration's error; empty if none is known."""
    return next((text for pattern, text in REASONS if re.search(pattern, configuration)), "")
