"""Estimates of memory and time beside what others have measured."""

from collections.abc import Sequence
from statistics import median

from benchmarks.tables.markdown import Row, percent, percentile, read_result, table


def _errors(rows: Sequence[Row]) -> list[float]:
    return [abs(row["estimate"] / row["measured"] - 1) for row in rows]


def _error_columns(rows: Sequence[Row], digits: Sequence[int]) -> list[str]:
    errors = _errors(rows)
    return [
        str(len(rows)),
        *(
            percent(value, count)
            for value, count in zip((median(errors), percentile(errors, 0.9), max(errors)), digits, strict=True)
        ),
    ]


def _scored(name: str, quantity: str | None = None) -> list[Row]:
    """Return the rows that have an estimate, of a quantity beside the main one if it is named."""
    rows = [row for row in read_result(name)["rows"] if not row.get("skipped")]
    return [row[quantity] for row in rows if quantity in row] if quantity else rows


def memory() -> str:
    sets = (
        ("LoRA and QLoRA on T4s (allocated)", _scored("memory_lora"), (2, 2, 2)),
        ("full training on T4s (allocated)", _scored("memory_train"), (2, 1, 1)),
        ("LoRA and QLoRA on T4s (reserved)", _scored("memory_lora", "reserved"), (2, 1, 1)),
        ("LoRA and QLoRA on T4s (the whole process)", _scored("memory_lora", "process"), (2, 1, 1)),
        (
            "xMem's CNNs and transformers (reserved)",
            [row for row in _scored("memory_xmem") if row["fitted"]],
            (2, 1, 1),
        ),
    )
    head = (
        "set",
        "rows",
        "median error",
        "90th percentile",
        "worst",
        "under the high end",
        "high end above, at the median",
    )
    return table(head, ([title, *_error_columns(rows, digits), *_high_end(rows)] for title, rows, digits in sets))


def _high_end(rows: Sequence[Row]) -> list[str]:
    held = sum(row["measured"] <= row["high"] for row in rows) / len(rows)
    return [percent(held).replace("100.0", "100"), percent(median(row["high"] / row["measured"] - 1 for row in rows))]


def time() -> str:
    train = _scored("time_train")
    sets = (
        ("LoRA and QLoRA steps on T4s, fp16 and NF4", _scored("time_lora")),
        ("full training steps on T4s, fp32 and fp16", [row for row in train if row["group"].startswith("T4")]),
        ("full training steps on P100s, fp32", [row for row in train if row["group"].startswith("P100")]),
    )
    head = ("set", "rows", "median error", "90th percentile", "worst", "within the range")
    return table(
        head,
        (
            [
                title,
                *_error_columns(rows, (1, 1, 1)),
                percent(sum(row["low"] <= row["measured"] <= row["high"] for row in rows) / len(rows), 0),
            ]
            for title, rows in sets
        ),
    )
