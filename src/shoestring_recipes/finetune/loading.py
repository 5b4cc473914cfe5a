"""The samples of a run: rows that are read, rendered and inspected."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shoestring.base.units import plural
from shoestring_recipes.finetune import synthetic, vocabulary
from shoestring_recipes.finetune.data import read_parts
from shoestring_recipes.finetune.inspection import Inspection, inspect, require_learnable
from shoestring_recipes.finetune.interface import Interface
from shoestring_recipes.finetune.options import Options
from shoestring_recipes.finetune.rendering import Renderer
from shoestring_recipes.finetune.rows import Row, RowParts
from shoestring_recipes.finetune.samples import Samples


@dataclass(frozen=True, kw_only=True)
class Data:
    """The samples of training and validation."""

    train: Samples
    validation: Samples
    inspection: Inspection | None
    """Of the training data; None for placeholders."""
    notes: tuple[str, ...]

    def require_learnable(self) -> None:
        """Raise DataError for data from which the model would never learn to stop."""
        if self.inspection is not None:
            require_learnable(self.inspection)


def load_data(options: Options, renderer: Callable[[], Renderer], interface: Callable[[], Interface]) -> Data:
    """Return the samples of the option `data`, without those in which nothing is learned.

    Raises DataError for unusable rows, and UsageError for tokens of which the model has no embedding. Whether the model
    would learn to stop is a result, `inspection`.
    """
    parts = _rows(options)
    built = renderer()
    train, validation = (_render(built, rows, options.method) for rows in (parts.train, parts.validation))
    vocabulary_notes = vocabulary.require_rows((*train, *validation), interface())
    inspection = inspect(train, built, parts.train)
    return Data(
        train=_learnable(train, parts.train),
        validation=_learnable(validation, parts.validation),
        inspection=inspection,
        notes=(
            *parts.notes,
            *_chat_notes(built, (*parts.train, *parts.validation)),
            *vocabulary_notes,
            *inspection.notes,
        ),
    )


def _rows(options: Options) -> RowParts:
    if options.data is None:
        return synthetic.conversations(method=options.method)
    return read_parts(
        options.data,
        columns=options.columns,
        method=options.method,
        on_bad_rows=options.on_bad_rows,
        validation=options.validation,
        seed=options.seed,
    )


def _render(renderer: Renderer, rows: Sequence[Any], method: str) -> Sequence[Any]:
    return renderer.render_pairs(rows) if method == "dpo" else renderer.render_all(rows)


def _chat_notes(renderer: Renderer, rows: Sequence[Row]) -> Iterator[str]:
    if count := sum(map(renderer.is_wrapped, rows)):
        yield (
            f"{plural(count, 'row')} with texts as prompt and answer: written as messages with the chat template "
            "(as_chat=no joins them as they are)"
        )


def _learnable(samples: Sequence[Any], rows: Sequence[Row]) -> Samples:
    indices = [index for index, sample in enumerate(samples) if sample.is_learnable]
    return Samples([samples[index] for index in indices], [rows[index] for index in indices])
