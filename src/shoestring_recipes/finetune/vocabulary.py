"""The ids of a tokenizer and the rows of a model's embedding, which need not be as many."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from shoestring.base.errors import UsageError
from shoestring_recipes.finetune.samples import PairSample

_NAMED = 3
"""Tokens of an error."""


def rows_of(config: Any) -> int | None:
    """Return the number of rows of the embedding that a configuration has; None if it has no such number."""
    rows = getattr(config.get_text_config(), "vocab_size", None)
    return rows if isinstance(rows, int) else None


def largest_id(tokenizer: Any) -> int:
    """Return the largest id that the tokenizer can give, with those of added tokens."""
    return max(tokenizer.get_vocab().values(), default=0)


def with_rows(config: Any, rows: int | None) -> Any:
    """Return the configuration with an embedding of at least so many rows."""
    present = rows_of(config)
    if rows is None or present is None or present >= rows:
        return config
    config = copy.deepcopy(config)
    config.get_text_config().vocab_size = rows
    return config


def enlarge(model: Any, rows: int | None) -> nn.Module:
    """Return the model with at least so many rows in its embedding and its head, of which the added ones are trained.

    An added row begins as the mean of the others, so that it is the same in each session of a run.
    """
    present = model.get_input_embeddings().weight.shape[0]
    if rows is None or present >= rows:
        plain: nn.Module = model
        return plain
    model.resize_token_embeddings(rows, mean_resizing=False)
    with torch.no_grad():
        for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
            if layer is not None:
                layer.weight[present:] = layer.weight[:present].float().mean(0).to(layer.weight.dtype)
    return mark_added(model, present)


def mark_added(model: Any, stored_rows: int | None) -> nn.Module:
    """Return the model, which says which rows were added to how many: adapters train these rows."""
    rows = model.get_input_embeddings().weight.shape[0]
    if stored_rows is not None and stored_rows < rows:
        layers = {id(layer) for layer in (model.get_input_embeddings(), model.get_output_embeddings())}
        names = [name for name, layer in model.named_modules() if id(layer) in layers]
        model.added_rows = {name: list(range(stored_rows, rows)) for name in names}
    marked: nn.Module = model
    return marked


def require_rows(samples: Iterable[Any], tokenizer: Any, config: Any) -> list[str]:
    """Return a note if the tokenizer has ids beyond the embedding, which the samples do not have.

    Raises UsageError if a sample has one.
    """
    rows = rows_of(config)
    largest = largest_id(tokenizer)
    if rows is None or largest < rows:
        return []
    beyond: dict[int, int] = {}
    for sample in samples:
        parts = (sample.chosen, sample.rejected) if isinstance(sample, PairSample) else (sample,)
        for token in {int(token) for part in parts for token in part.tokens[part.tokens >= rows]}:
            beyond[token] = beyond.get(token, 0) + 1
    sizes = f"the tokenizer has ids up to {largest:,}, and the model's embedding has {rows:,} rows (0 to {rows - 1:,})"
    if not beyond:
        return [f"{sizes}: no sample has an id beyond them"]
    most_frequent = sorted(beyond, key=lambda token: (-beyond[token], token))[:_NAMED]
    raise UsageError(
        sizes,
        problems=[
            f"{tokenizer.convert_ids_to_tokens(token)!r} is {token:,}, which {beyond[token]:,} samples have"
            for token in most_frequent
        ],
        hint="give the tokenizer that belongs to the model; or --set enlarge_vocabulary=yes adds rows for these ids, "
        "which are trained and exported",
    )
