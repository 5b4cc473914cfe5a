"""The tables of the documentation that are written from the results of benchmarks.

A page has a table between the comments `<!-- table: NAME -->` and `<!-- end of table -->`.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.catalogue import BENCHMARKS, RESULTS, ROOT, Benchmark

DOCS = ROOT / "docs"
RECORD = RESULTS / "record.json"
_TABLE = re.compile(
    r"(?<=<!-- table: )(?P<name>[a-z_]+)(?P<open> -->\n)(?P<table>.*?)(?=<!-- end of table -->)", re.DOTALL
)

Result = dict[str, Any]
Row = Mapping[str, Any]


def rewrite() -> list[str]:
    """Write all tables anew, and return the names of the pages that have changed."""
    changed = differing_pages()
    for name in changed:
        page = DOCS / name
        page.write_text(_with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
    return changed


def differing_pages() -> list[str]:
    """Return the names of the pages whose tables are not those of the results."""
    texts = {page.relative_to(DOCS).as_posix(): page.read_text(encoding="utf-8") for page in sorted(DOCS.rglob("*.md"))}
    return [name for name, text in texts.items() if _with_tables(text) != text]


def _with_tables(text: str) -> str:
    return _TABLE.sub(lambda match: f"{match['name']}{match['open']}{TABLES[match['name']]()}", text)


def _result(name: str) -> Result:
    value: Result = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return value


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-len(ordered) * share // 1) - 1)]


def _percent(share: float, digits: int = 1) -> str:
    return f"{share:.{digits}%}"


def _errors(rows: Sequence[Row]) -> list[float]:
    return [abs(row["estimate"] / row["measured"] - 1) for row in rows]


def _error_columns(rows: Sequence[Row], digits: Sequence[int]) -> list[str]:
    errors = _errors(rows)
    return [
        str(len(rows)),
        *(
            _percent(value, count)
            for value, count in zip((median(errors), percentile(errors, 0.9), max(errors)), digits, strict=True)
        ),
    ]


def _scored(name: str, quantity: str | None = None) -> list[Row]:
    """Return the rows that have an estimate, of a quantity beside the main one if it is named."""
    rows = [row for row in _result(name)["rows"] if not row.get("skipped")]
    return [row[quantity] for row in rows if quantity in row] if quantity else rows


def _memory() -> str:
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
    return _table(head, ([title, *_error_columns(rows, digits), *_high_end(rows)] for title, rows, digits in sets))


def _high_end(rows: Sequence[Row]) -> list[str]:
    held = sum(row["measured"] <= row["high"] for row in rows) / len(rows)
    return [_percent(held).replace("100.0", "100"), _percent(median(row["high"] / row["measured"] - 1 for row in rows))]


def _time() -> str:
    train = _scored("time_train")
    sets = (
        ("LoRA and QLoRA steps on T4s, fp16 and NF4", _scored("time_lora")),
        ("full training steps on T4s, fp32 and fp16", [row for row in train if row["group"].startswith("T4")]),
        ("full training steps on P100s, fp32", [row for row in train if row["group"].startswith("P100")]),
    )
    head = ("set", "rows", "median error", "90th percentile", "worst", "within the range")
    return _table(
        head,
        (
            [
                title,
                *_error_columns(rows, (1, 1, 1)),
                _percent(sum(row["low"] <= row["measured"] <= row["high"] for row in rows) / len(rows), 0),
            ]
            for title, rows in sets
        ),
    )


def _kaggle() -> str:
    results = [
        (title, _result(name)) for title, name in (("without torch", "kaggle-chains"), ("training", "kaggle-training"))
    ]
    lines = (
        ("runs", "chains"),
        ("sessions", "sessions"),
        ("sessions without progress (lost, killed, damaged)", "sessions_wasted"),
        ("kills of the laptop", "kills"),
        ("pushes that were doubled", "doubled"),
        ("runs beyond the quota", "quota_exceeded"),
        ("kernels left running", "left_running"),
        ("places where the token was found", "token_found"),
    )
    rows: list[list[object]] = [[title, *(result[key] for _, result in results)] for title, key in lines]
    outcomes = [result["outcomes"] for _, result in results]
    rows[1:1] = [
        ["finished in the bits of an unbroken run", *(count.get("finished", 0) for count in outcomes)],
        ["ended in one clear error", *(count.get("error", 0) for count in outcomes)],
        [
            "anything else",
            *(sum(count.values()) - count.get("finished", 0) - count.get("error", 0) for count in outcomes),
        ],
    ]
    return _table(["counted", *(title for title, _ in results)], rows)


def _losses() -> str:
    result = _result("backup-losses")
    places = {"folder": "folder", "s3": "`s3://`", "hf": "`hf://`", "kaggle": "`kaggle://` (processing takes 0.5 s)"}
    rows = []
    for place, title in places.items():
        lost = [row["lost_updates"] for row in result["rows"] if row["place"] == place]
        rows.append([title, len(lost), f"{median(lost):g}", max(lost)])
    return _table(("place", "machines lost", "updates lost, median", "most"), rows)


def _benchmarks() -> str:
    records = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return _table(
        ("benchmark", "question", "command", "measured"),
        (
            [f"`{item.name}`", item.question, _command(item), _measured(item, records.get(item.name))]
            for item in BENCHMARKS
        ),
    )


def _command(benchmark: Benchmark) -> str:
    words = ["python", *shlex.split(benchmark.command)]
    text = " ".join(
        word.replace("OUT", f"benchmarks/results/{benchmark.name}.json") if word == "OUT" else word for word in words
    )
    return f"`{text}`" + (f"; needs {benchmark.needs}" if benchmark.needs else "")


def _measured(benchmark: Benchmark, record: Mapping[str, Any] | None) -> str:
    """Return when and where a result was measured, as far as it was recorded."""
    if record:
        return f"{record['date']}, {record['machine']}, torch {record['versions']['torch']}; {record['seconds']} s"
    if not benchmark.result.exists():
        return "not measured yet"
    result = json.loads(benchmark.result.read_text(encoding="utf-8"))
    facts = list(_facts(result)) if isinstance(result, dict) else []
    return ", ".join(facts) or "machine and date are not recorded"


def _facts(result: Result) -> Iterator[str]:
    environment = result.get("environment", {})
    for name in ("date", "machine", "processor", "cpu", "device", "cores", "torch"):
        if value := result.get(name, environment.get(name) if isinstance(environment, dict) else None):
            yield f"{name} {value}" if name in ("torch", "cores") else str(value)


TABLES: dict[str, Callable[[], str]] = {
    "memory": _memory,
    "time": _time,
    "kaggle": _kaggle,
    "backup_losses": _losses,
    "benchmarks": _benchmarks,
}
