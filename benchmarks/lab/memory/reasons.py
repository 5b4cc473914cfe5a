"""Why the largest errors are as large as they are, from comparing both sequences of allocations (`causes.py`), or what
each length of the very first microbatch reserves (`first_batches.py`)."""

import re

_MEDIAN = "an estimate is the median for very first batches of unequal lengths; the measured batches are equal"
_MASK = "transformers leaves out a mask that masks nothing; an estimate has that of padded samples"

REASONS: tuple[tuple[str, str], ...] = (
    (r"^(qwen3-0.6b .*attention=eager|gpt2 |finetune 7)", _MEDIAN),
    (r"^opt-125m .* 4 fp16 checkpointing=full$", f"{_MASK}; and {_MEDIAN}"),
    (r"^opt-125m", _MASK),
)
"""Patterns of configurations' ids, and the reason."""


def reason(configuration: str) -> str:
    """Return the reason for a configuration's error; empty if none is known."""
    return next((text for pattern, text in REASONS if re.search(pattern, configuration)), "")
