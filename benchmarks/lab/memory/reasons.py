"""Why the largest errors are as large as they are, from comparing both sequences of allocations (`causes.py`)."""

import re

_DETERMINISTIC = "of the kernels that deterministic algorithms use, an estimate has no memory"

REASONS: tuple[tuple[str, str], ...] = (
    (r"hier_bilstm_crf", f"{_DETERMINISTIC}: the gradient of `gather` sorts indices (`index_put_with_sort_kernel`)"),
    (r"segformer", f"{_DETERMINISTIC}: bilinear interpolation is computed by indexing (`_unsafe_index`)"),
    (r"^temporal architecture=transformer", "sums over 5,120 rows have buffers of 5 to 20 MiB, in a small model"),
    (r"^temporal .*evaluation", "an evaluation needs no reserve space of cuDNN, which its estimate has"),
    (r"^temporal", "dropout states of cuDNN and cuBLASLt's workspace are a large share of a small model"),
    (r"sharding=zero[23]", "FSDP2 loads whole blocks before it divides them; an estimate has only their shards"),
    (r"fp16 evaluation", "casts of weights stay from one batch to the next; an estimate has those of a single batch"),
    (r"^opt-125m", "transformers leaves out a mask that masks nothing; an estimate has that of padded samples"),
)  # fmt: skip
"""Patterns of configurations' ids, and the reason."""


def reason(configuration: str) -> str:
    """Return the reason for a configuration's error; empty if none is known."""
    return next((text for pattern, text in REASONS if re.search(pattern, configuration)), "")
