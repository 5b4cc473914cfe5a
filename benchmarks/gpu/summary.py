"""Put the results of `first_minutes.sh` together, and print a table of what to look at.

    python -m benchmarks.gpu.summary FOLDER

FOLDER has `parts.tsv` and the JSON of the parts that wrote one. `first_minutes.json` in FOLDER has all of them, and its
copy in `benchmarks/results/gpu/` is what the tables of the documentation are written from.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

LARGE_ERROR = 0.05
"""Of an estimate of memory, from which it is named."""

Content = dict[str, Any]


def collect(folder: Path) -> Content:
    """Return the status of each part with its results, and the environment of the first part that has one."""
    parts: dict[str, Content] = {}
    environment: Content = {}
    for line in (folder / "parts.tsv").read_text(encoding="utf-8").splitlines():
        name, status, seconds = line.split("\t")
        parts[name] = {"status": status, "seconds": int(seconds)}
        try:
            content = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            log = folder / f"{name}.log"
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
            parts[name]["log"] = lines[-12:]
            continue
        environment = environment or content.get("environment", {})
        parts[name] |= {"rows": content["findings"]} if "findings" in content else content
        parts[name].pop("environment", None)
    return {"environment": environment, "parts": parts}


def table(content: Content) -> list[str]:
    """Return the lines of the table: for each part its status, its result, and what to look at."""
    environment = content["environment"]
    names = ("device", "driver", "python", "torch", "transformers", "date")
    lines = ["  ".join(str(environment[name]) for name in names if name in environment), ""]
    for name, part in content["parts"].items():
        summary, findings = RESULTS[name](part) if name in RESULTS and "rows" in part else ("", [])
        lines.append(f"{name:14} {part['status']:24} {part['seconds']:4} s  {summary}")
        lines += [f"{'':14}   look at: {finding}" for finding in findings]
        if "rows" not in part and part.get("log"):
            lines.append(f"{'':14}   look at: {part['log'][-1]}")
    return lines


def _memory(part: Content) -> tuple[str, list[str]]:
    rows = [row for row in part["rows"] if "skipped" not in row]
    errors = {row["id"]: row["reserved"] / row["measured_reserved"] - 1 for row in rows if row["measured_reserved"]}
    findings = [
        f"{row['id']}: {row['reserved'] / 2**20:,.0f} MiB estimated, {row['measured_reserved'] / 2**20:,.0f} reserved "
        f"({errors[row['id']]:+.1%}), allocated {row['allocated'] / row['measured_allocated'] - 1:+.1%}"
        + ("" if row["low"] <= row["measured_reserved"] <= row["high"] else ", outside the range")
        for row in rows
        if abs(errors.get(row["id"], 0.0)) > LARGE_ERROR
    ]
    wrong = [row for row in rows if row.get("limited") and row["limited"]["said"] != row["limited"]["fits"]]
    findings += [f"{row['id']} with a T4's memory: {row['limited']}" for row in wrong]
    return f"{len(rows)} cases, {_median('median error of reserved memory', errors.values())}", findings + _skipped(
        part
    )


def _out_of_memory(part: Content) -> tuple[str, list[str]]:
    bad = [f"{row['phase']} in {row['precision']}: {row['failures'][-1:]}" for row in part["rows"] if not row["good"]]
    return f"{len(part['rows']) - len(bad)} of {len(part['rows'])} recoveries are exact", bad


def _graphs(part: Content) -> tuple[str, list[str]]:
    bad = [
        f"{row['name']} in {row['precision']}: gradients differ by {row['max_gradient_difference']:.3g}"
        for row in part["rows"]
        if row["max_gradient_difference"] != 0
    ]
    faster = median(row["seconds"] / row["graph_seconds"] for row in part["rows"])
    return f"{len(part['rows']) - len(bad)} of {len(part['rows'])} have equal bits, {faster:.1f} times as fast", bad


def is_equal(row: Mapping[str, Any]) -> bool:
    """Return whether a row that compares bits found them equal, in all repetitions if it has several."""
    return bool(row["equal"] is True or row["equal"] == row.get("repetitions"))


def _equal(part: Content) -> tuple[str, list[str]]:
    rows = [row for row in part["rows"] if "skipped" not in row]
    bad = [
        f"{row.get('id', row.get('name'))} {row.get('sharding', '')}: bits differ"
        + "".join(f", {' '.join(row['error'].split())[-160:]}" for _ in range("error" in row))
        for row in rows
        if not is_equal(row)
    ]
    return f"{len(rows) - len(bad)} of {len(rows)} have equal bits", bad + _skipped(part)


def _time(part: Content) -> tuple[str, list[str]]:
    rows = [row for row in part["rows"] if "skipped" not in row]
    catalog = [row["estimate"] / row["measured"] - 1 for row in rows]
    by_rates = [
        row["by_measured_rates"]["estimate"] / row["measured"] - 1 for row in rows if row.get("by_measured_rates")
    ]
    findings = [
        f"{row['id']}: {row['estimate'] * 1e3:.1f} ms ({row['low'] * 1e3:.1f} to {row['high'] * 1e3:.1f}) estimated, "
        f"{row['measured'] * 1e3:.1f} measured"
        for row in rows
        if not row["low"] <= row["measured"] <= row["high"]
    ]
    if "error" in part["kernels"]:
        findings.append(f"rates of kernels: {part['kernels']['error']}")
    text = f"{len(rows)} cases, {_median('median error', catalog)}, {_median('by measured rates', by_rates)}"
    return text, findings + _skipped(part)


def _finetune(part: Content) -> tuple[str, list[str]]:
    speeds = {
        row["contender"]: row["learnt_tokens_per_second"] for row in part["rows"] if "learnt_tokens_per_second" in row
    }
    return ", ".join(f"{name} {speed:,.0f} learnt tokens/s" for name, speed in speeds.items()), _skipped(part)


def _whole_run(part: Content) -> tuple[str, list[str]]:
    """Of runs with their plans: what lies outside the planned ranges."""
    rows = part["rows"]
    planned = {"seconds": "with_probe", "bytes": "planned_bytes", "update_seconds": "planned_update"}
    findings = [
        f"{row['run']}: {name} {row[name]:.4g}, planned {low:.4g} to {high:.4g} (without a probe {row[other]})"
        for row in rows
        for name, range_name in planned.items()
        for low, _, high in [row[range_name]]
        for other in [{"with_probe": "without_probe"}.get(range_name, range_name.replace("planned", "predicted"))]
        if not low <= row[name] <= high
    ]
    errors = [row["with_probe"][1] / row["seconds"] - 1 for row in rows]
    return f"{len(rows)} runs, {_median('median error of their length', errors)}", findings


def _machine(part: Content) -> tuple[str, list[str]]:
    row = part["rows"][0]
    return (
        f"context {row['context'] / 2**20:.0f} MiB, with libraries {row['context_with_libraries'] / 2**20:.0f}; "
        f"cuBLAS workspace {row['workspace'] / 2**20:.3f} MiB by default"
    ), [str(row["error"]) for row in part["rows"] if "error" in row]


def _check(part: Content) -> tuple[str, list[str]]:
    """The findings of `shoestring check`."""
    bad = [row for row in part["rows"] if row["status"] != "pass"]
    findings = [f"{row['name']}, {row['status']}: {' '.join(row['said'].split())[:200]}" for row in bad]
    return f"{len(part['rows']) - len(bad)} of {len(part['rows'])} checks passed", findings


def _convolutions(part: Content) -> tuple[str, list[str]]:
    rows = part["rows"]
    operands = [row["input_bytes"] + row["weight_bytes"] + row["output_bytes"] for row in rows]
    extra = [max(row["forward_bytes"], row["backward_bytes"]) for row in rows]
    large = [
        f"{row['name']}, {row['type']}, {row['format']}: {size / 2**20:.0f} MiB beside {own / 2**20:.0f} of operands"
        for row, own, size in zip(rows, operands, extra, strict=True)
        if size > own
    ]
    with_any = sum(size > 2**20 for size in extra)
    return f"{with_any} of {len(rows)} convolutions take more than 1 MiB", large


RESULTS: dict[str, Callable[[Content], tuple[str, list[str]]]] = {
    "machine": _machine,
    "memory": _memory,
    "out_of_memory": _out_of_memory,
    "graphs": _graphs,
    "kills": _equal,
    "determinism": _equal,
    "convolutions": _convolutions,
    "check": _check,
    "whole_run": _whole_run,
    "time": _time,
    "finetune": _finetune,
    "ranks": _equal,
}


def _skipped(part: Content) -> list[str]:
    return [
        f"{row.get('id', row.get('contender'))} was skipped: {' '.join(str(row['skipped']).split())[-160:]}"
        for row in part["rows"]
        if "skipped" in row
    ]


def _median(name: str, errors: Any) -> str:
    sizes = [abs(error) for error in errors]
    return f"{name} {median(sizes):.1%}" if sizes else f"{name}: none"


def main(arguments: Sequence[str]) -> int:
    folder = Path(arguments[0])
    content = collect(folder)
    (folder / "first_minutes.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print("\n".join(_lines(content)))
    return 0


def _lines(content: Content) -> Iterator[str]:
    yield "What a GPU showed"
    yield from table(content)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
