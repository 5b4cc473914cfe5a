"""Rehearsals: scripts that others wrote, and allocations beside those of estimates."""

from collections.abc import Mapping
from typing import Any

from benchmarks.tables.markdown import read_result, table

SCRIPTS = "rehearse-ten-scripts"
ALLOCATIONS = "rehearse-allocations"


def scripts() -> str:
    """Return a row for each script and target: what was answered, how long it took, what was assumed."""
    rows = [
        [
            row["script"],
            row["target"],
            _answer(row),
            _gib(max((peak for peak in row.get("peak_reserved_bytes") or [] if peak), default=None)),
            f"{row['update_seconds']:.2f} s" if row.get("update_seconds") else "–",
            f"{row['seconds']:.0f} s",
            _gib(row.get("host_peak_bytes")),
            len(row.get("assumed_first") or []) and row["assumed"],
        ]
        for row in read_result(SCRIPTS)["rows"]
    ]
    times_and_memory = ("reserved at most", "predicted update", "rehearsed in", "host memory")
    return table(("script", "target", "answer", *times_and_memory, "assumed"), rows)


def _answer(row: Mapping[str, Any]) -> str:
    """Return what a rehearsal answered, in a few words."""
    if "fits" not in row:
        return str(row.get("error") or "no answer")
    if event := row.get("out_of_memory"):
        frames = event["in_the_script"] or event["innermost"]
        place = f", {frames[0]['file'].rpartition('/')[2]}:{frames[0]['line']}" if frames else ""
        return f"out of memory at update {event['update']}{place}"
    if row["end"] == "failed":
        return f"fails: {str(row['script_error'])[:100]}"
    return f"fits, {row['updates']} updates"


def _gib(size: int | None) -> str:
    return "–" if size is None else f"{size / 2**30:.2f} GiB"


def allocations() -> str:
    """Return a row for each script: the estimate as a share of what PyTorch's allocator did."""
    rows = []
    for row in read_result(ALLOCATIONS)["rows"]:
        estimate, simulated = row["estimate"], row["simulated"]
        replayed = row["simulated_requests_replayed"]
        shares = [f"{estimate[name] / simulated[name]:.4f}" for name in ("requested", "allocated", "reserved")]
        same = all(replayed[name] == simulated[name] for name in ("allocated", "reserved", "segments"))
        requests = f"{estimate['requests_of_update']:,} / {simulated['requests_of_update']:,}"
        rows.append([row["name"], requests, *shares, "yes" if same else "no"])
    head = ("script", "requests of an update", "requested", "allocated", "reserved", "replayed to the byte")
    return table(head, rows)


def causes() -> str:
    """Return a row for each cause of differences, with the requests of an update that it makes differ."""
    result = read_result(ALLOCATIONS)
    counts: dict[str, dict[str, int]] = {name: {} for name in result["causes"]}
    for row in result["rows"]:
        for difference in row["differences"]:
            per_script = counts[difference["cause"]]
            per_script[row["name"]] = per_script.get(row["name"], 0) + difference["allocations_of_update"]
    rows = [
        [name, text, ", ".join(f"{script} {count}" for script, count in counts[name].items() if count) or "–"]
        for name, text in result["causes"].items()
    ]
    return table(("cause", "reason", "requests of an update"), rows)
