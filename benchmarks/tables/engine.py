"""The engine beside other loops, runs of several processes, the ends of sessions, and exported models."""

from collections.abc import Sequence
from statistics import median
from typing import cast

from benchmarks.tables.markdown import Row, read_result, table

_MIB = 1 << 20


def engine() -> str:
    titles = {"plain": "plain loop, `torch.save`", "shoestring": "Shoestring"}
    head = (
        "",
        "update",
        "slower than the plain loop",
        "peak memory",
        "pause for a save, 48 MiB",
        "pause for a save, 480 MiB",
        "start to first update, resumed",
    )
    return table(
        head,
        (
            [
                titles.get(row["name"], row["name"]),
                _milliseconds(row["update_seconds"]),
                "–" if row["name"] == "plain" else _slowdown(row["against_plain"], row["against_plain_range"]),
                f"{row['peak_bytes'] / _MIB:.0f} MiB",
                _milliseconds(row["stall_seconds"]),
                f"{row['large_stall_seconds'] * 1000:.0f} ms",
                f"{row['resume_seconds']:.2f} s",
            ]
            for row in read_result("engine")["rows"]
        ),
    )


def interrupted() -> str:
    """Write whether stopped and continued runs of several libraries end with the bits of runs without a stop."""
    rows = read_result("interrupted")["rows"]
    cases = list(rows[0]["equal"])
    return table(
        ("library", "version", *cases),
        (
            [row["name"], row["version"], *("same bits" if row["equal"][case] else "other bits" for case in cases)]
            for row in rows
        ),
    )


def engine_goals() -> str:
    goals = read_result("engine")["goals"]
    return table(("goal", "reached"), ([text, "yes" if is_reached else "no"] for text, is_reached in goals.items()))


def parallel() -> str:
    titles = {
        "DDP by hand": "DistributedDataParallel, plain loop",
        "FSDP2 by hand": "FSDP2, plain loop",
        "shoestring ddp": "Shoestring, `ddp`",
        "shoestring zero1": "Shoestring, `zero1`",
        "shoestring zero3": "Shoestring, `zero3`",
        "one process": "one process, plain loop",
    }
    return table(
        ("", "update", "compared with", "slower by"),
        (
            [
                titles.get(row["name"], row["name"]),
                f"{row['update_seconds'] * 1000:.0f} ms",
                *(
                    ("–", "–")
                    if row["name"] == row["compared_with"]
                    else (row["compared_with"].split()[0], _slowdown(row["slowdown"], row["slowdown_interval"]))
                ),
            ]
            for row in read_result("parallel")["rows"]
        ),
    )


def overlap() -> str:
    titles = {
        "one process": "one process",
        "after backward": "two processes, exchange after backward",
        "during backward": "two processes, exchange during backward",
    }
    return table(
        ("", "update", "times as fast as one process"),
        (
            [
                titles[row["name"]],
                _milliseconds(row["update_seconds"]),
                "–"
                if row["name"] == "one process"
                else f"{row['speedup']:.2f} ({row['speedup_interval'][0]:.2f} to {row['speedup_interval'][1]:.2f})",
            ]
            for row in read_result("overlap")["rows"]
        ),
    )


def ranks() -> str:
    rows: list[Row] = read_result("ranks")["rows"]
    lines = []
    for name in dict.fromkeys(row["name"] for row in rows):
        of_model = [row for row in rows if row["name"] == name]
        shardings = ", ".join(f"`{row['sharding']}`" for row in of_model)
        lines.append([_model(name), shardings, "equal" if all(row["equal"] for row in of_model) else "differ"])
    return table(("model", "`sharding`", "weights and optimizer state"), lines)


def _model(name: str) -> str:
    recipe, _, variant = name.partition(" ")
    if recipe not in ("temporal", "legal", "vqa", "cloud"):
        return f"a small network with {name}"
    return f"`{recipe}`" + (f", {variant}" if variant else "")


def rank_kills() -> str:
    rows = _rows("rank_kills")
    modes = list(dict.fromkeys((row["sharding"], row["ranks"]) for row in rows))
    groups = {mode: [row for row in rows if (row["sharding"], row["ranks"]) == mode] for mode in modes}
    return table(
        ("`sharding`", "processes", "runs", "kills", "runs with the same bits as an undisturbed run"),
        (
            [f"`{sharding}`", count, len(group), sum(row["kills"] for row in group), sum(row["equal"] for row in group)]
            for (sharding, count), group in groups.items()
        ),
    )


def rank_memory() -> str:
    rows = _rows("rank_memory")
    phases = list(dict.fromkeys(row["phase"] for row in rows))
    lines = []
    for sharding in dict.fromkeys(row["sharding"] for row in rows):
        of_phase = {row["phase"]: row for row in rows if row["sharding"] == sharding}
        lines.append(
            [f"`{sharding}`", *(_recovery(of_phase[phase]) for phase in phases), _weights(list(of_phase.values()))]
        )
    return table(("`sharding`", *phases, "final weights"), lines)


def _recovery(row: Row) -> str:
    ways = {"": "repeated", "all ranks started again": "all processes restarted"}
    _, _, way = row["outcome"].partition(", ")
    text = ways.get(way, "from the checkpoint")
    return f"{text}, {row['more_seconds_than_undisturbed']:.1f} s"


def _weights(rows: Sequence[Row]) -> str:
    """Return how the final weights differ from those that the benchmark compares them with."""
    if any("equal" in row for row in rows):
        return "same bits" if all(row["equal"] for row in rows) else "differ"
    return f"differ by at most {max(row['largest_difference'] for row in rows):.1e}"


def session_limits() -> str:
    summary = read_result("session_limits")["summary"]
    lines = (
        ("sessions", summary["sessions"]),
        ("sessions that also planned the run", summary["first_sessions"]),
        ("sessions that ended after their limit", summary["late"]),
        ("sessions that the supervisor ended", summary["ended_by_supervisor"]),
        ("time left before the limit, shortest", f"{summary['least_seconds_left']:.1f} s"),
        ("time left before the limit, median", f"{summary['median_seconds_left']:.1f} s"),
        ("load average of the machine, median", f"{summary['median_load']:.1f}"),
    )
    return table(("measured", "value"), lines)


def exports() -> str:
    rows = _rows("recipes_use")
    times = ("train", "predict", "export", "load")
    return table(
        ("recipe", "format", "equal predictions", "largest difference of an output", *times),
        (
            [
                row["recipe"],
                row["format"],
                f"{row['equal']} of {row['inputs']}",
                f"{row['max_difference']:.1e}" if row["max_difference"] else "0",
                *(f"{row['seconds'][name]:.1f} s" for name in times),
            ]
            for row in rows
        ),
    )


def _rows(name: str) -> list[Row]:
    """Return the rows of a result that is a list."""
    return cast(list[Row], read_result(name))


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def _slowdown(share: float, interval: Sequence[float]) -> str:
    low, high = interval
    return f"{_signed(share)} ({_signed(low)} to {_signed(high)})"


def _signed(share: float) -> str:
    return f"{share:+.1%}"


def spinning() -> str:
    """Write the median update of each model by how long its threads spin, on an idle and on a busy machine."""
    rows = read_result("spinning")["rows"]
    counts = list(rows[0]["update_seconds"])
    head = (
        "update of",
        "other processes",
        *(f"{int(count):,} spins" if count != "default" else "default" for count in counts),
    )
    return table(
        head,
        (
            [
                row["model"],
                str(row["other_processes"]),
                *(f"{median(row['update_seconds'][count]) * 1e3:,.0f} ms" for count in counts),
            ]
            for row in rows
        ),
    )
