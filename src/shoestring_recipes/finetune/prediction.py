"""Prompts without answers, and the answers of a model to them.

A row has `messages` that end with one of the user, a `prompt` (a text, or messages), or a `text` that the model
continues. Rows of the training data are accepted as well: their answer is the target, which the model does not see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from torch import Tensor, nn

from shoestring.base.errors import DataError, UsageError
from shoestring.base.reading import reason
from shoestring.recipe.inputs import Input
from shoestring.techniques.loss import IGNORED
from shoestring_recipes.finetune.columns import NAMES, Columns
from shoestring_recipes.finetune.formats import READERS
from shoestring_recipes.finetune.generation import generate
from shoestring_recipes.finetune.parsing import parse_cells
from shoestring_recipes.finetune.questions import FORMS, Question, Renderer, parse_question, question_of
from shoestring_recipes.finetune.rows import Row

ANSWERED_AT_ONCE = 8
"""Held-out prompts that are answered at the same time."""
HELD_OUT = 8
"""The rows of the validation data that are answered before training and after each epoch."""


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
    return map(parse, _read_rows(Path(source), columns or {}))


def read_questions(rows: Sequence[Row], renderer: Renderer) -> list[Input]:
    """Return the inputs of rows of the training or validation data."""
    return [_input(row.place, partial(question_of, row), renderer, None) for row in rows]


def held_out_questions(rows: Sequence[Row]) -> list[Question]:
    """Return the questions of the first rows that have one; a row may begin with its only answer."""
    questions: list[Question] = []
    for row in rows:
        if len(questions) == HELD_OUT:
            break
        with suppress(ValueError):
            questions.append(question_of(row))
    return questions


def read_prompts(path: Path) -> list[Question]:
    """Return the questions in a file of prompts. Raises DataError with all rows that cannot be used."""
    questions, problems = [], []
    try:
        rows = list(_read_rows(path, {}))
    except UsageError as error:
        raise DataError(f"prompts={path}: {error.message}", hint=error.hint) from error
    for number, row in enumerate(rows, start=1):
        try:
            if isinstance(row, ValueError):
                raise row
            if not isinstance(row, Mapping):
                raise ValueError(f"is not an object with {FORMS}")
            questions.append(parse_question(row))
        except ValueError as error:
            problems.append(f"{path}, row {number}: {error}")
    if problems or not questions:
        raise DataError(
            f"prompts={path}: {len(problems)} rows cannot be used" if problems else f"prompts={path} has no rows",
            problems=problems[:20],
            hint='write a row as {"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}',
        )
    return questions


def collate_prompts(samples: Sequence[Prompt]) -> Prompts:
    return {"prompts": [sample.tokens for sample in samples], "targets": [sample.target for sample in samples]}


def split_answers(tokens: Tensor, labels: Tensor, renderer: Renderer) -> Prompts:
    """Return the last answer of each sample of a batch as the target, and what precedes it as the prompt.

    `tokens` (samples, length) int64, `labels` (samples, length) int64: the learned tokens at their own positions, and
    `IGNORED` elsewhere. The last answer is the last learned tokens in a row; of a sample without any it is empty.
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
    model: nn.Module,
    questions: Sequence[Question],
    renderer: Renderer,
    *,
    max_tokens: int,
    pad: int,
    longest: int | None = None,
    size: int = ANSWERED_AT_ONCE,
) -> Iterator[dict[str, Any]]:
    """Yield a row with `prompt`, `answer`, `reference` and `stopped` for each question, `size` of them at a time.

    Questions of more than `longest` tokens are left out.
    """
    questions = [question for question in questions if longest is None or len(question.tokens(renderer)) <= longest]
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
    return _input(identifier, partial(parse_question, row), renderer, longest)


def _input(identifier: str | int | None, ask: Callable[[], Question], renderer: Renderer, longest: int | None) -> Input:
    try:
        question = ask()
    except ValueError as error:
        return Input(id=identifier, error=str(error))
    value = question.prompt if isinstance(question.prompt, str) else list(question.prompt)
    return Input(id=identifier, value=value, load=partial(_load, question, renderer, longest))


def _load(question: Question, renderer: Renderer, longest: int | None) -> Prompt:
    tokens = question.tokens(renderer)
    if longest is not None and len(tokens) > longest:
        raise ValueError(f"its prompt has {len(tokens)} tokens, more than {longest}")
    return Prompt(tokens, question.target)


def _read_rows(path: Path, columns: Columns) -> Iterator[Any]:
    """Yield the rows of a file, or of all files of a folder, and a ValueError for one that is not readable.

    Raises UsageError for a file that cannot be read.
    """
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in READERS) if path.is_dir() else [path]
    if not files or files[0].suffix.lower() not in READERS:
        raise UsageError(f"{path} has no rows that can be read", hint=f"the data may end in {', '.join(READERS)}")
    needed_columns = {"id", *NAMES, *columns.values()}
    for file in files:
        suffix = file.suffix.lower()
        try:
            for _, row in READERS[suffix](file, needed_columns):
                yield _parsed_cells(row, columns) if suffix in (".csv", ".tsv") else _row_or_error(row)
        except (OSError, ValueError) as error:
            raise UsageError(f"{file} cannot be read: {reason(error)}") from error


def _row_or_error(row: Any) -> Any:
    """Return a row, or an error for the reason why it cannot be read."""
    return ValueError(row) if isinstance(row, str) else row


def _parsed_cells(row: Any, columns: Columns) -> Any:
    try:
        return _row_or_error(row) if isinstance(row, str) else parse_cells(row, columns)
    except ValueError as error:
        return error
