"""Reading the rows of training and of validation from files, and setting rows aside for validation."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoestring.base.errors import DataError
from shoestring.base.units import count_text, plural
from shoestring_recipes.finetune.columns import Columns, parse_columns, require_columns
from shoestring_recipes.finetune.duplicates import THRESHOLD, WORDS, count_near_duplicates
from shoestring_recipes.finetune.files import DataFile, find_files, read_rows
from shoestring_recipes.finetune.parsing import (
    NoFormError,
    find_form,
    is_left_out,
    needed_columns,
    parse_cells,
    parse_row,
    unused_columns,
)
from shoestring_recipes.finetune.rows import Completion, Conversation, Message, Pair, Row, RowParts, Text
from shoestring_recipes.finetune.turns import TurnsError
from shoestring_recipes.rows import MAX_LISTED, BadRows, OnBadRows

_ALIASES = {
    ("conversations",): "conversations, read as messages",
    ("instruction", "output"): "instruction and output, read as prompt and completion",
}

_CONVERTED = {
    "system": "a column system, written as the first message",
    "history": "a column history, written as messages before the question; its answers are learned as well",
    "functions": "a column functions, read as tools",
}


def read_parts(
    path: Path,
    *,
    columns: str | None,
    method: str,
    on_bad_rows: OnBadRows,
    validation: float,
    seed: int,
    describe: Callable[[Sequence[Message]], str] = lambda _: "",
) -> RowParts:
    """Return the rows of a file or folder for `method`, `sft` or `dpo`.

    Where no file is one of validation, the share `validation` of the rows is set aside by `split`, decided by `seed`.
    `describe` says what the chat template makes of messages in an order that is not learned.

    Raises UsageError for `columns` that do not fit, DataError for files and rows that cannot be used.
    """
    our_columns = parse_columns(columns)
    files, notes = find_files(path)
    bad_rows = BadRows(on_bad_rows)
    reading = _Reading(method=method, columns=our_columns, describe=describe)
    base = path if path.is_dir() else path.parent
    rows: dict[str, list[Row]] = {"train": [], "validation": []}
    row_count = 0
    for file in files:
        for place, row in reading.rows(file):
            row_count += 1
            if isinstance(row, str):
                bad_rows.report(base / place, None, row)
            elif row is not None:
                rows[file.part].append(row)
    if reading.present:
        require_columns(our_columns, reading.present)
    bad_rows.finish(row_count, hint_for_all=reading.hint())
    if not rows["train"]:
        weightless = f": {plural(reading.left_out, 'row')} with weight 0" if reading.left_out else ""
        raise DataError(
            f"{path}: no row of the training data is left{weightless}", hint="correct the rows of the training data"
        )
    train, held_out = rows["train"], rows["validation"]
    origin = "from its own files"
    if not held_out:
        train, held_out = split(train, validation, seed)
        origin = "set aside so that rows with the same prompt are in one part"
        if validation and not held_out:
            origin = "as all rows have the same prompt: add a file validation.jsonl"
    counts = f"{plural(len(train), 'row')} to train on and {count_text(len(held_out))} for validation"
    counts += f", {origin}" if held_out or validation else ""
    return RowParts(
        train=train,
        validation=held_out,
        notes=(counts, *notes, *bad_rows.notes, *reading.notes(), *_describe_duplicates(train, held_out)),
    )


def split(rows: Sequence[Row], share: float, seed: int) -> tuple[list[Row], list[Row]]:
    """Return the rows of training and of validation, each in the order of `rows`.

    Rows with the same prompt, apart from case and white space, are in one part. Which part depends on the seed and the
    contents, not on the order of the rows. The number of validation rows is as near to the share as the prompts admit,
    and at least 1 if there are two prompts and the share is not 0.
    """
    groups: dict[bytes, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        groups[_digest(_normalize(_prompt(row)), seed)].append(number)
    target_count = min(max(1, round(share * len(rows))), len(rows) - 1) if share else 0
    held_out: set[int] = set()
    remaining = []
    for _, group in sorted(groups.items()):
        if len(held_out) + len(group) <= target_count:
            held_out.update(group)
        else:
            remaining.append(group)
    # One group more may be nearer to the wanted number, but not the last: it is trained on.
    smallest = min(remaining, key=len, default=[])
    excess = len(held_out) + len(smallest) - target_count
    if len(remaining) > 1 and target_count and (not held_out or excess < target_count - len(held_out)):
        held_out.update(smallest)
    train = [row for number, row in enumerate(rows) if number not in held_out]
    return train, [rows[number] for number in sorted(held_out)]


@dataclass(kw_only=True)
class _Reading:
    """Parses rows, and remembers what the notes tell of them."""

    method: str
    columns: Columns
    describe: Callable[[Sequence[Message]], str]
    present: set[str] = field(default_factory=set)
    """The columns of all rows."""
    forms: Counter[tuple[str, ...]] = field(default_factory=Counter)
    unused: Counter[str] = field(default_factory=Counter)
    """Rows by the columns that have no effect on them."""
    converted: Counter[str] = field(default_factory=Counter)
    """Rows by the columns that become messages or tools."""
    left_out: int = 0
    """Rows with the weight 0."""
    problems: Counter[type[ValueError]] = field(default_factory=Counter)

    def rows(self, file: DataFile) -> Iterator[tuple[str, Row | str | None]]:
        """Yield the place of each row, and the row, why it cannot be used, or None if it is not to be learned."""
        for place, raw in read_rows(file, needed_columns(self.method, self.columns)):
            if isinstance(raw, str):
                self.problems[ValueError] += 1
                yield place, raw
                continue
            self.present.update(raw)
            try:
                values = parse_cells(raw, self.columns) if file.suffix in (".csv", ".tsv") else raw
                row = parse_row(values, place, self.method, self.columns)
                is_left_out_row = is_left_out(values, self.columns)
            except ValueError as error:
                yield place, self._problem(error)
                continue
            if form := find_form(values, self.method, self.columns):
                self.forms[form] += 1
                unused = unused_columns(values, form, self.columns)
                self.unused.update(unused)
                self.converted.update(
                    name
                    for name in _CONVERTED
                    if values.get(theirs := self.columns.get(name, name)) and theirs not in unused
                )
            self.left_out += is_left_out_row
            yield place, None if is_left_out_row else row

    def _problem(self, error: ValueError) -> str:
        self.problems[type(error)] += 1
        # Only the first problems are listed.
        if isinstance(error, TurnsError) and self.problems.total() <= MAX_LISTED:
            return f"{error}{self.describe(error.messages)}"
        return str(error)

    def hint(self) -> str:
        """Return what may help if no row can be used."""
        if NoFormError not in self.problems:
            return "correct these rows as their reasons say; their columns have the right names"
        other = "sft" if self.method == "dpo" else "dpo"
        return (
            "if your columns have other names: --set columns=prompt:question,completion:answer, for example; "
            f"if the rows are for the other method: --set method={other}"
        )

    def notes(self) -> Iterator[str]:
        for form, description in _ALIASES.items():
            if count := self.forms[form]:
                yield f"{plural(count, 'row')} with {description}"
        for name, description in _CONVERTED.items():
            if count := self.converted[name]:
                yield f"{plural(count, 'row')} with {description}"
        if self.left_out:
            yield f"{plural(self.left_out, 'row')} with the weight 0, left out of training and validation"
        if unused := sorted(self.unused.items()):
            remainder = f" and {count_text(len(unused) - 20)} more" if len(unused) > 20 else ""
            names = ", ".join(f"{name} ({plural(count, 'row')})" for name, count in unused[:20])
            yield f"columns that are not used: {names}{remainder}"


def _describe_duplicates(train: Sequence[Row], validation: Sequence[Row]) -> Iterator[str]:
    digests = {_digest(_normalize(_contents(row))) for row in (*train, *validation)}
    if repeated := len(train) + len(validation) - len(digests):
        yield f"rows that repeat another one, apart from case and white space: {count_text(repeated)}"
    if validation:
        count = count_near_duplicates([_text(row) for row in validation], [_text(row) for row in train])
        yield (
            f"validation rows that nearly repeat a training row: {count_text(count)} of {count_text(len(validation))} "
            f"(Jaccard similarity of their sequences of {WORDS} words at least {THRESHOLD})"
        )


def _contents(row: Row) -> dict[str, Any]:
    return {name: value for name, value in vars(row).items() if name != "place"}


def _parts(row: Row) -> tuple[str | tuple[Message, ...], ...]:
    """Return the texts or lists of messages of a row, in the order in which a model sees them."""
    match row:
        case Text():
            return (row.text,)
        case Conversation():
            return (row.messages,)
        case Completion():
            return row.prompt, row.completion
        case Pair():
            return row.prompt, row.chosen, row.rejected


def _prompt(row: Row) -> str:
    """Return the text of a row before its first answer to a user.

    If it differs between two rows, then so do the prompts of their later answers, which begin with it.
    """
    parts = _parts(row)
    if isinstance(parts[0], str):
        return parts[0]
    contents: list[str] = []
    has_question = False
    for message in (message for part in parts if not isinstance(part, str) for message in part):
        if has_question and message["role"] == "assistant":
            break
        has_question = has_question or message["role"] == "user"
        contents.append(message["content"])
    return "\n".join(contents)


def _text(row: Row) -> str:
    """Return the texts of a row without those of the system, which many rows have in common."""
    contents = []
    for part in _parts(row):
        for message in ({"role": "", "content": part},) if isinstance(part, str) else part:
            if message["role"] not in ("system", "developer"):
                contents.append(message["content"])
    return "\n".join(contents)


def _normalize(value: Any) -> Any:
    """Return a value with all texts in lower case and with single spaces."""
    if isinstance(value, str):
        return " ".join(value.casefold().split())
    if isinstance(value, dict):
        return {key: _normalize(item) for key, item in value.items()}
    return [_normalize(item) for item in value] if isinstance(value, list | tuple) else value


def _digest(value: Any, seed: int = 0) -> bytes:
    text = json.dumps([seed, value], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
