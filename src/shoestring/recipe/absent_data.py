"""Data that are not on this machine, as a plan knows them: their number of rows, and the lengths of their samples."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

from shoestring.base import config
from shoestring.base.errors import UsageError
from shoestring.base.reading import COUNT, MAX_COUNT, find_problems, is_count, read_json, reason

DEFAULT_ROWS = 10_000
"""Of a plan that sets only the lengths."""
_QUANTILES = 1000
_MAX_BYTES = 16 * 2**20
_MAX_DIGITS = 16
_PARTS = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class AbsentData:
    """Options of plans for data that are elsewhere. A run has none of them."""

    rows: Annotated[int | None, "for plans of data that are not here: their number of rows, of all parts together"] = (
        None
    )
    row_tokens: Annotated[int | None, "for such plans: the length of each sample"] = None
    lengths: Annotated[
        Path | None, "for such plans: the file with the samples' lengths, from shoestring check RECIPE --lengths FILE"
    ] = None


def split_values(values: Mapping[str, object], own: Container[str] = ()) -> tuple[dict[str, object], dict[str, object]]:
    """Return the values of a run without those of `AbsentData`, and these, which only its plan has.

    Names in `own` are options of the recipe, which a run has.
    """
    names = config.fields(AbsentData).keys() & values.keys()
    absent = {name: value for name, value in values.items() if name in names and name not in own}
    return {name: value for name, value in values.items() if name not in absent}, absent


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """How many samples of the training data have each length."""

    unit: str
    counts: Mapping[int, int]
    rows: int | None = None
    """The rows of the data, of all parts together; None in a file that does not tell."""
    samples: Mapping[str, int] = field(default_factory=dict)
    """The samples in each part of the data."""
    tokenizer: str = ""
    """What the lengths depend on besides the texts, the recipe's `length_source`; empty in a file that does not tell.
    """

    def json(self) -> dict[str, Any]:
        """Return the content of the file."""
        return {
            "unit": self.unit,
            "counts": {str(length): count for length, count in sorted(self.counts.items())},
            "rows": self.rows,
            "samples": dict(self.samples),
            "tokenizer": self.tokenizer,
        }

    @classmethod
    def read(cls, path: Path) -> Lengths:
        """Read a file that `json` describes, in which only `unit` and `counts` are required.

        Raises UsageError if it cannot be read.
        """
        try:
            values = read_json(path, follow=True, max_bytes=_MAX_BYTES)
        except (OSError, ValueError) as error:
            raise UsageError(f"lengths={path}: cannot be read: {reason(error)}", hint=_HINT) from error
        problems = _problems(values)
        if problems:
            raise UsageError(f"lengths={path}: not a file of lengths", problems=problems, hint=_HINT)
        return cls(
            unit=values["unit"],
            counts={int(length): count for length, count in values["counts"].items() if count},
            rows=values.get("rows"),
            samples=values.get("samples") or {},
            tokenizer=values.get("tokenizer") or "",
        )

    @classmethod
    def count(cls, lengths: Iterable[float], **fields: Any) -> Lengths:
        """Count the lengths of samples."""
        counts: dict[int, int] = {}
        for length in lengths:
            counts[round(length)] = counts.get(round(length), 0) + 1
        return cls(counts=counts, **fields)

    @property
    def total(self) -> int:
        """The number of samples of the training data."""
        return sum(self.counts.values())

    def quantiles(self, count: int = _QUANTILES) -> tuple[float, ...]:
        """Return at most `count` lengths, in ascending order, that are distributed as these."""
        lengths = sorted(self.counts)
        ends = list(accumulate(self.counts[length] for length in lengths))
        count = min(count, self.total)
        positions = ((index + 0.5) * self.total / count for index in range(count))
        return tuple(float(lengths[bisect_left(ends, position)]) for position in positions)


_COUNTS = 'but is to be numbers of samples by their length, whole numbers from 1, such as {"128": 20}'
_HINT = "write it where the data are: shoestring check RECIPE --set data=PATH --lengths FILE"


def _problems(values: Any) -> list[str]:
    if not isinstance(values, dict):
        return ["it is not a JSON object"]
    problems = [f"{name} is missing" for name in ("unit", "counts") if name not in values]
    if not isinstance(values.get("unit", ""), str):
        problems.append("unit is not a text")
    if not isinstance(values.get("tokenizer") or "", str):
        problems.append("tokenizer is not a text")
    if values.get("rows") is not None:
        problems += find_problems(values, {"rows": COUNT})
    counts, samples = values.get("counts", {}), values.get("samples") or {}
    if not isinstance(counts, dict):
        problems.append(f"counts is {type(counts).__name__}, {_COUNTS}")
    elif wrong := next(
        ((key, count) for key, count in counts.items() if not (_is_length(key) and is_count(count))), None
    ):
        problems.append(f"counts has {wrong[0][:20]!r}: {wrong[1]!r}, {_COUNTS}")
    elif "counts" in values and not any(counts.values()):
        problems.append("counts has no samples")
    if not isinstance(samples, dict) or not all(map(is_count, samples.values())):
        problems.append("samples is not an object of numbers of samples by the part of the data")
    elif samples and (samples.keys() - set(_PARTS) or not samples.get("train")):
        problems.append("samples are not those of train, and perhaps of validation and test")
    return problems


def _is_length(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS and 0 < int(text) <= MAX_COUNT


def samples_of(
    absent: AbsentData, lengths: Lengths | None, *, shares: Mapping[str, float], samples_per_row: float
) -> dict[str, int]:
    """Return the number of samples in each part of data with so many rows.

    A file of lengths tells how the samples are divided, and how many there are if `rows` is not set. Without one,
    `shares` of the rows are in each part.
    """
    if lengths and lengths.samples:
        scale = absent.rows / lengths.rows if absent.rows and lengths.rows else 1.0
        return {name: max(1, round(count * scale)) for name, count in lengths.samples.items() if count}
    if lengths and absent.rows is None:
        total = lengths.total / shares["train"]
    else:
        total = (absent.rows or DEFAULT_ROWS) * samples_per_row
    counts = {name: max(1, round(total * share)) for name, share in shares.items() if share and name != "train"}
    return {"train": max(1, round(total) - sum(counts.values())), **counts}
