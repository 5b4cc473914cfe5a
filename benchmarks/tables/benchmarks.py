"""All benchmarks: question, command, and where and when the committed result was measured."""

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.catalogue import BENCHMARKS, RESULTS, Benchmark
from benchmarks.tables.markdown import Result, table

RECORD = RESULTS / "record.json"


def benchmarks() -> str:
    records = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return table(
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
    facts = dict.fromkeys(_facts(result)) if isinstance(result, dict) else {}
    return ", ".join(facts) or "machine and date are not recorded"


def _facts(result: Result) -> Iterator[str]:
    environment = result.get("environment", {})
    for name in ("date", "machine", "processor", "cpu", "device", "cores", "torch"):
        if value := result.get(name, environment.get(name) if isinstance(environment, dict) else None):
            yield f"{name} {value}" if name in ("torch", "cores") else str(value)
