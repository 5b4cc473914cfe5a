"""Prompts without answers, and the answers of a model to them.

A row has `messages` that end with one of the user, a `prompt` (a text, or messages), or a `text` that the model
continues. Rows of the training data are accepted as well: their answer is the target, which the model does not see.
"""

from __future__ import annotations

import csv
import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from torch import Tensor, nn

from shoestring.errors import UsageError
from shoestring.reading import (
    LINE_BYTES,
    TEXT_BYTES,
    open_binary,
    open_table,
    parse_json,
    read_json,
    read_lines,
    reason,
)
from shoestring.recipe.extras import require
from shoestring.recipe.inputs import Input
from shoestring.recipes.finetune.generation import generate
from shoestring.recipes.finetune.questions import FORMS, Question, Renderer, parse_question
from shoestring.techniques.loss import IGNORED
from shoestring.units import bytes_text

FORMATS = (".jsonl", ".json", ".csv", ".parquet")
"""The endings of files with rows."""
_ROWS_AT_ONCE = 256
"""Of a Parquet file, whose rows are in memory so many at a time."""


@dataclass(frozen=True)
class Prompt:
    """The tokens of a prompt, and the answer to it if that is known."""

    tokens: list[int]
    target: str | None = None


class Prompts(TypedDict):
    """A batch of prompts. It has no tensors: they are padded on the left when the answers are generated."""

    prompts: list[list[int]]
    targets: list[str | None]


def read_inputs(
    source: Any, renderer: Renderer, *, columns: Mapping[str, str] | None = None, longest: int | None = None
) -> Iterable[Input]:
    """Return the inputs of a file, of all files of a folder in the order of their names, or of a list of rows.

    Each loads a `Prompt`. A row that cannot be used, or whose prompt has more than `longest` tokens, is an input with
    an error. `columns` has the names of the columns where they differ: {"messages": "chat"}.

    Raises UsageError for a file that cannot be read, and for a folder without any.
    """
    parse = partial(_parse_row, renderer=renderer, columns=columns or {}, longest=longest)
    if not isinstance(source, str | Path):
        return list(map(parse, source))
    return map(parse, _read_rows(Path(source)))


def collate_prompts(samples: Sequence[Prompt]) -> Prompts:
    return {"prompts": [sample.tokens for sample in samples], "targets": [sample.target for sample in samples]}


def split_answers(tokens: Tensor, labels: Tensor, renderer: Renderer) -> Prompts:
    """Return the last answer of each sample of a batch as the target, and what precedes it as the prompt.

    `tokens` (samples, length) int64, `labels` (samples, length) int64: the learnt tokens at their own positions, and
    `IGNORED` elsewhere. The last answer is the last learnt tokens in a row; of a sample without any it is empty.
    """
    batch: Prompts = {"prompts": [], "targets": []}
    for row, row_labels in zip(tokens.tolist(), labels.tolist(), strict=True):
        end = max((position + 1 for position, label in enumerate(row_labels) if label != IGNORED), default=len(row))
        start = end
        while start > 1 and row_labels[start - 1] != IGNORED:
            start -= 1
        batch["prompts"].append(row[:start])
        batch["targets"].append(_decode(row[start:end], renderer))
    return batch


def predict(model: nn.Module, batch: Prompts, renderer: Renderer, *, max_tokens: int, pad: int) -> list[dict[str, Any]]:
    """Return the answer to each prompt, its number of `tokens` without the stop token, and whether it has `stopped` by
    that token rather than after `max_tokens`.
    """
    answers = generate(model, batch["prompts"], stop_tokens=renderer.stop_tokens, max_tokens=max_tokens, pad=pad)
    rows = []
    for tokens in answers:
        stopped = bool(tokens) and tokens[-1] in renderer.stop_tokens
        rows.append({"prediction": _decode(tokens, renderer), "tokens": len(tokens) - stopped, "stopped": stopped})
    return rows


def targets(batch: Prompts) -> list[str | None]:
    """Return the true answer to each prompt; None where it is not known."""
    return batch["targets"]


def answer_questions(
    model: nn.Module, questions: Sequence[Question], renderer: Renderer, *, max_tokens: int, pad: int, size: int = 8
) -> Iterator[dict[str, Any]]:
    """Yield a row with `prompt`, `answer`, `reference` and `stopped` for each question, `size` of them at a time."""
    for start in range(0, len(questions), size):
        group = questions[start : start + size]
        batch = collate_prompts([Prompt(question.tokens(renderer), question.target) for question in group])
        predictions = predict(model, batch, renderer, max_tokens=max_tokens, pad=pad)
        for question, row in zip(group, predictions, strict=True):
            yield {
                "prompt": question.text(),
                "answer": row["prediction"],
                "reference": question.target,
                "stopped": row["stopped"],
            }


def _decode(tokens: list[int], renderer: Renderer) -> str:
    """Return the text of an answer, without the stop token at its end."""
    return renderer.decode(tokens[:-1] if tokens and tokens[-1] in renderer.stop_tokens else tokens)


def _parse_row(row: Any, *, renderer: Renderer, columns: Mapping[str, str], longest: int | None) -> Input:
    if isinstance(row, ValueError):
        return Input(error=str(row))
    if not isinstance(row, Mapping):
        return Input(value=str(row)[:200], error=f"is not an object with {FORMS}")
    own = row.get("id")
    identifier = own if isinstance(own, str | int) and not isinstance(own, bool) else None
    row = {**row, **{ours: row[theirs] for ours, theirs in columns.items() if theirs in row}}
    try:
        question = parse_question(row)
    except ValueError as error:
        return Input(id=identifier, error=str(error))
    value = question.prompt if isinstance(question.prompt, str) else list(question.prompt)
    return Input(id=identifier, value=value, load=partial(_load, question, renderer, longest))


def _load(question: Question, renderer: Renderer, longest: int | None) -> Prompt:
    tokens = question.tokens(renderer)
    if longest is not None and len(tokens) > longest:
        raise ValueError(f"its prompt has {len(tokens)} tokens, more than {longest}")
    return Prompt(tokens, question.target)


def _read_rows(path: Path) -> Iterator[Any]:
    """Yield the rows of a file or a folder, a ValueError for one that is not readable."""
    files = sorted(file for file in path.iterdir() if file.suffix in FORMATS) if path.is_dir() else [path]
    if not files:
        raise UsageError(f"{path} has no file of rows", hint=f"its name ends in {', '.join(FORMATS)}")
    readers = {".json": _read_json, ".csv": _read_csv, ".parquet": _read_parquet}
    for file in files:
        try:
            yield from readers.get(file.suffix, _read_json_lines)(file)
        except (OSError, ValueError, csv.Error) as error:
            why = reason(error) if isinstance(error, OSError | ValueError) else str(error)
            raise UsageError(f"{file} cannot be read: {why}") from error


def _read_json_lines(file: Path) -> Iterator[Any]:
    for line in read_lines(file, follow=True, max_bytes=TEXT_BYTES):
        if line is not None and not line.strip():
            continue
        try:
            if line is None:
                raise ValueError(f"it is longer than {bytes_text(LINE_BYTES)}")
            yield parse_json(line, strict=False)
        except ValueError as error:
            yield ValueError(f"is not JSON: {error}")


def _read_json(file: Path) -> Iterator[Any]:
    rows = read_json(file, follow=True, max_bytes=TEXT_BYTES, strict=False)
    if not isinstance(rows, list):
        raise ValueError("it contains no JSON list of rows")
    yield from rows


def _read_csv(file: Path) -> Iterator[Any]:
    with open_table(file) as lines:
        for row in csv.DictReader(lines, strict=True):
            if None in row:
                yield ValueError("has more cells than the first line")
            else:
                yield {name: cell for name, cell in row.items() if cell}


def _read_parquet(file: Path) -> Iterator[Any]:
    require("finetune", "pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    with open_binary(file, max_bytes=TEXT_BYTES) as content:
        for batch in parquet.ParquetFile(content).iter_batches(batch_size=_ROWS_AT_ONCE):
            yield from batch.to_pylist()
