"""The operators that Gavel's copy of the word language model adds to PyTorch's example.

`workloads/pytorch/language_modeling/main.py` of stanford-futuredata/gavel keeps the corpus on the GPU and gives it to a
`DataLoader` without workers: each sample is a column of the corpus, padded by `torch.cat` with an empty tensor, and the
samples of a batch are stacked, on the GPU and in the same thread as the update.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

CLIP_NORM = 0.25
"""The default of the example's option `--clip`."""


def collate(columns: Tensor) -> Tensor:
    """Return the same tokens (time, samples), sliced, padded and stacked as by Gavel's dataset and loader."""
    import torch

    samples = [columns[:, number] for number in range(columns.shape[1])]
    return torch.stack([torch.cat([sample, sample.new_zeros(0)]) for sample in samples]).t()
