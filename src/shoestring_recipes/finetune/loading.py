"""The samples of a run: rows that are read, rendered and inspected."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoestring.base.errors import DataError, UsageError
from shoestring.base.units import plural
from shoestring_recipes.finetune import synthetic, vocabulary
from shoestring_recipes.finetune.data import read_parts
from shoestring_recipes.finetune.inspection import Inspection, inspect, require_learnable
from shoestring_recipes.finetune.interface import Interface
from shoestring_recipes.finetune.options import Options
from shoestring_recipes.finetune.rendering import Renderer
from shoestring_recipes.finetune.rows import Message, Row, RowParts
from shoestring_recipes.finetune.samples import Samples
from shoestring_recipes.finetune.template_notes import template_notes
from shoestring_recipes.rows import BadRows


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
    parts = _rows(options, renderer)
    built = renderer()
    bad_rows = BadRows(options.on_bad_rows)
    rows, samples = {}, {}
    for name, part in (("train", parts.train), ("validation", parts.validation)):
        rows[name], samples[name] = _render(built, part, options, bad_rows)
    bad_rows.finish(len(parts.train) + len(parts.validation))
    if not rows["train"]:
        raise DataError("the chat template writes no row of the training data", problems=bad_rows.notes)
    words = interface()
    trained = (*samples["train"], *samples["validation"])
    vocabulary_notes = vocabulary.require_rows(trained, words.tokenizer, words.config)
    inspection = inspect(samples["train"], built, rows["train"])
    all_rows = (*rows["train"], *rows["validation"])
    template = (*_chat_notes(built, all_rows), *template_notes(all_rows, built))
    return Data(
        train=_learnable(samples["train"], rows["train"]),
        validation=_learnable(samples["validation"], rows["validation"]),
        inspection=inspection,
        notes=(*template, *parts.notes, *bad_rows.notes, *vocabulary_notes, *inspection.notes),
    )


def _rows(options: Options, renderer: Callable[[], Renderer]) -> RowParts:
    if options.data is None:
        return synthetic.conversations(method=options.method)

    def describe(messages: Sequence[Message]) -> str:
        with suppress(UsageError):  # of a model that cannot be read, which is reported where it is needed
            return renderer().describe_turns(messages)
        return ""

    return read_parts(
        options.data,
        columns=options.columns,
        method=options.method,
        on_bad_rows=options.on_bad_rows,
        validation=options.validation,
        seed=options.seed,
        describe=describe,
    )


def _render(
    renderer: Renderer, rows: Sequence[Any], options: Options, bad_rows: BadRows
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return the rows that the template can write, and their samples. The others are reported if they are skipped."""
    is_dpo = options.method == "dpo"
    if options.on_bad_rows == "refuse":
        return rows, renderer.render_pairs(rows) if is_dpo else renderer.render_all(rows)
    samples, rejected = (renderer.render_usable_pairs if is_dpo else renderer.render_usable)(rows)
    for place, reason in rejected.places.items():
        bad_rows.report(Path(place), None, f"the chat template cannot write it: {reason}")
    usable = [index for index, sample in enumerate(samples) if sample is not None]
    return [rows[index] for index in usable], [samples[index] for index in usable]


def _chat_notes(renderer: Renderer, rows: Sequence[Row]) -> Iterator[str]:
    if count := sum(map(renderer.is_wrapped, rows)):
        yield (
            f"{plural(count, 'row')} with texts as prompt and answer: written as messages with the chat template "
            "(as_chat=no joins them as they are)"
        )


def _learnable(samples: Sequence[Any], rows: Sequence[Row]) -> Samples:
    indices = [index for index, sample in enumerate(samples) if sample.is_learnable]
    return Samples([samples[index] for index in indices], [rows[index] for index in indices])
