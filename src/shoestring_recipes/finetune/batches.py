"""Batches of samples, or of packed rows of them, for the loss of a causal language model.

Padding is at the end of a row, where causal attention never looks back from, so no attention mask is needed. What is
learned is marked by position, so a stop token that is also the padding token is learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy
import torch
from torch import Tensor

from shoestring.techniques.loss import IGNORED

if TYPE_CHECKING:
    from shoestring_recipes.finetune.samples import Sample

Batch: TypeAlias = dict[str, Tensor]
"""`input_ids` (rows, length) int64, the tokens; `places` (learned,) int64, the position before each learned token in
the flattened rows; `targets` (learned,) int64, the learned tokens; if a row has several samples also `position_ids`
(rows, length) int64, which begin at 0 with each sample: from them transformers makes a mask that separates samples."""

_MULTIPLE = 8
"""Rows are padded to multiples of it, as tensor cores need for fp16."""


def collate(rows: Sequence[Sample | Sequence[Sample]]) -> Batch:
    """Return the batch of samples, each of which is a row, or of rows of several samples."""
    packed: list[Sequence[Sample]] = [row if isinstance(row, Sequence) else [row] for row in rows]
    length = padded_length(max(sum(map(len, row)) for row in packed))
    tokens = numpy.zeros((len(packed), length), dtype=numpy.int64)
    positions = numpy.zeros_like(tokens)
    loss_mask = numpy.zeros_like(tokens, dtype=bool)
    for number, row in enumerate(packed):
        start = 0
        for sample in row:
            end = start + len(sample)
            tokens[number, start:end], loss_mask[number, start:end] = sample.tokens, sample.loss_mask
            loss_mask[number, start] = False  # nothing precedes the first token of a sample
            positions[number, start:end] = numpy.arange(len(sample))
            start = end
        positions[number, start:] = numpy.arange(length - start)
    indices = loss_mask.ravel().nonzero()[0]
    batch = {
        "input_ids": torch.from_numpy(tokens),
        "places": torch.from_numpy(indices - 1),
        "targets": torch.from_numpy(tokens.ravel()[indices]),
    }
    if any(len(row) > 1 for row in packed):
        batch["position_ids"] = torch.from_numpy(positions)
    return batch


def padded_length(length: int) -> int:
    """Return the length to which a row of so many tokens is padded."""
    return -(-length // _MULTIPLE) * _MULTIPLE


def labels_of(batch: Batch) -> Tensor:
    """Return the learned tokens at their own positions (rows, length) int64, and `IGNORED` elsewhere."""
    labels = torch.full_like(batch["input_ids"], IGNORED)
    labels.view(-1)[batch["places"] + 1] = batch["targets"]
    return labels


def largest(rows: int, length: int) -> Batch:
    """Return the largest batch of `rows`, in which every token but the first of a row is learned."""
    length = padded_length(length)
    places = (torch.arange(rows)[:, None] * length + torch.arange(length - 1)).flatten()
    return {
        "input_ids": torch.zeros(rows, length, dtype=torch.int64),
        "places": places,
        "targets": torch.zeros_like(places),
    }


def largest_packed(rows: int, length: int) -> Batch:
    """Return the largest batch of packed rows, each of two samples."""
    batch = largest(rows, length)
    length = batch["input_ids"].shape[1]
    return {**batch, "position_ids": (torch.arange(length) % (length // 2)).repeat(rows, 1)}
