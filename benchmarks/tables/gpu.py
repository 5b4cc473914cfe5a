"""What GPUs showed (`benchmarks/gpu/first_minutes.sh`), and what is not measured yet.

Each file in `benchmarks/results/gpu` is the result of one device. Without a file the tables say so.
"""

import json
from collections.abc import Iterator
from statistics import median
from typing import Any

from benchmarks.catalogue import RESULTS
from benchmarks.gpu.summary import is_equal
from benchmarks.tables.accuracy import whole_run_table
from benchmarks.tables.markdown import Result, Row, percent, table

from shoestring.base.packages.tested import TESTED
from shoestring.base.units import plural

NOT_MEASURED = "not measured yet"


def results() -> list[Result]:
    """Return the results of all devices."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted((RESULTS / "gpu").glob("*.json"))]


def rows_of(result: Result, part: str) -> list[Row]:
    """Return the rows of a part that were measured."""
    return [row for row in result["parts"].get(part, {}).get("rows", []) if not row.get("skipped")]


def _device(result: Result) -> str:
    environment = result["environment"]
    return f"{environment['device']}, {environment['date'][:10]}, torch {environment['torch']}"


def _rows(part: str) -> Iterator[tuple[str, Row]]:
    for result in results():
        for row in rows_of(result, part):
            yield _device(result), row


def memory() -> str:
    """Return the estimates of memory beside the measured bytes of each case."""
    rows = [
        (
            device,
            row["id"],
            _mib(row["measured_allocated"]),
            f"{row['allocated'] / row['measured_allocated'] - 1:+.1%}",
            _mib(row["measured_reserved"]),
            f"{row['reserved'] / row['measured_reserved'] - 1:+.1%}",
            "yes" if row["low"] <= row["measured_reserved"] <= row["high"] else "**no**",
        )
        for device, row in _rows("memory")
    ]
    head = ("device", "case", "allocated (MiB)", "estimate", "reserved (MiB)", "estimate", "in its range")
    return table(head, rows) if rows else f"{NOT_MEASURED}\n"


def time() -> str:
    """Return the estimates of time beside the measured updates of each case."""
    rows = []
    for device, row in _rows("time"):
        by_rates = row.get("by_measured_rates")
        rows.append(
            (
                device,
                row["id"],
                f"{row['measured'] * 1e3:.1f}",
                f"{row['estimate'] / row['measured'] - 1:+.0%}",
                "yes" if row["low"] <= row["measured"] <= row["high"] else "**no**",
                f"{by_rates['estimate'] / row['measured'] - 1:+.0%}" if by_rates else "-",
            )
        )
    head = ("device", "case", "update (ms)", "estimate", "in its range", "estimate by measured rates")
    return table(head, rows) if rows else f"{NOT_MEASURED}\n"


def whole_run() -> str:
    """Return whole runs beside their plans."""
    rows = [{**row, "run": f"{row['run']}, {device}"} for device, row in _rows("whole_run")]
    return whole_run_table(rows) if rows else f"{NOT_MEASURED}\n"


def bits() -> str:
    """Return what was compared bit for bit."""
    rows = []
    for result in results():
        for part, question in _BITS.items():
            measured = rows_of(result, part)
            if measured:
                held = sum(_holds(row) for row in measured)
                failed = ", ".join(_name(row) for row in measured if not _holds(row))
                rows.append((_device(result), question, f"{held} of {len(measured)}", failed or "-"))
    return table(("device", "question", "yes", "no"), rows) if rows else f"{NOT_MEASURED}\n"


_BITS = {
    "out_of_memory": "Does an update recover from out-of-memory to the bits of smaller microbatches, without a leak?",
    "kills": "Does a run that is killed twice end in the bits of one that is not?",
    "determinism": "Does the same update give the same gradients six times?",
    "graphs": "Do microbatches as CUDA graphs give the same gradients?",
    "ranks": "Do two processes end in the bits of one?",
}


def _holds(row: Row) -> bool:
    if "good" in row:
        return bool(row["good"])
    if "max_gradient_difference" in row:
        return bool(row["max_gradient_difference"] == 0)
    return is_equal(row)


def _name(row: Row) -> str:
    return str(row.get("id") or row.get("name") or f"{row['phase']} in {row['precision']}")


def finetune() -> str:
    """Return fine-tuning beside TRL."""
    rows = [
        (
            device,
            row["contender"],
            f"{row['learnt_tokens_per_second']:,.0f}",
            f"{row['update_seconds'] * 1e3:.0f}",
            _mib(row["peak_bytes"]),
        )
        for device, row in _rows("finetune")
    ]
    head = ("device", "contender", "learnt tokens/s", "update (ms)", "reserved (MiB)")
    return table(head, rows) if rows else f"{NOT_MEASURED}\n"


def status() -> str:
    """Return the README's table of what is measured and what is not yet."""
    return table(("", "measured by others, or on a CPU", "on a GPU of our own"), _status())


def _status() -> Iterator[tuple[str, str, str]]:
    yield (
        "memory",
        "median error 0.02% of tensors and 1.0% of the process on LoRA and QLoRA steps on T4s, 1.2% on 70 trainings "
        "of CNNs and transformers on three other GPUs ([accuracy](docs/explanation/accuracy.md))",
        _errors("memory", "measured_reserved", "reserved", "of reserved memory"),
    )
    yield (
        "time",
        "median error 6.8% on LoRA and QLoRA steps and 7.6% on full training steps on T4s "
        "([time](docs/explanation/time.md))",
        _errors("time", "measured", "estimate", "of an update"),
    )
    yield (
        "survival",
        "every kill, full disk and injected out-of-memory error of the tests ends in the same bits "
        "([faults](docs/explanation/faults.md))",
        _counts(("kills", "runs killed twice"), ("out_of_memory", "genuine out-of-memory errors")),
    )
    yield (
        "speed",
        "the engine against a plain loop, Hugging Face's Trainer and Lightning ([engine](docs/explanation/engine.md))",
        NOT_MEASURED,
    )
    yield (
        "several GPUs",
        "with whole weights on each, the bits of 1, 2 and 4 processes are equal, also after kills and out-of-memory in "
        "one of them ([several GPUs](docs/guides/several_gpus.md))",
        _counts(("ranks", "comparisons of two processes with one")),
    )
    oldest, *_, newest = (version.rpartition(".")[0] for version in TESTED["torch"])
    yield ("platforms", f"Linux, Python 3.11 to 3.13, PyTorch {oldest} to {newest}", _platforms())


def _errors(part: str, measured: str, estimate: str, what: str) -> str:
    texts = []
    for result in results():
        errors = [abs(row[estimate] / row[measured] - 1) for row in rows_of(result, part) if row[measured]]
        if errors:
            text = (
                f"median error {percent(median(errors))} {what} in {plural(len(errors), 'case')} on an {_short(result)}"
            )
            texts.append(text)
    return "; ".join(texts) or NOT_MEASURED


def _counts(*parts: tuple[str, str]) -> str:
    texts = []
    for result in results():
        for part, what in parts:
            if rows := rows_of(result, part):
                texts.append(f"{sum(map(_holds, rows))} of {len(rows)} {what}")
        if texts:
            texts[-1] += f" end in the same bits on an {_short(result)}"
    return " and ".join(texts) or NOT_MEASURED


def _platforms() -> str:
    texts = [
        f"Python {'.'.join(environment['python'].split('.')[:2])}, PyTorch {environment['torch']}"
        for environment in (result["environment"] for result in results())
    ]
    return "; ".join(texts) or NOT_MEASURED


def _short(result: Result) -> str:
    return str(result["environment"]["device"]).removeprefix("NVIDIA ").partition(" (")[0]


def _mib(size: Any) -> str:
    return f"{size / 2**20:,.0f}"
