"""The laboratory: what its tests execute and see, failing allocations, and predicted memory beside the allocator's."""

from collections import Counter
from collections.abc import Mapping, Sequence

from benchmarks.lab.memory.reasons import reason
from benchmarks.lab.memory.scores import Score, by_kind, errors_at, share_held
from benchmarks.lab.memory.scores import worst as worst_scores
from benchmarks.tables.markdown import percent, read_result, table

OUT_OF_MEMORY = "lab-out-of-memory"
COVERAGE = "lab-coverage"
BREAKS = "lab-breaks"
MEMORY = "lab-memory"
DECISIONS = "lab-decisions"
LENGTHS = "lab-lengths"


def _scores() -> list[Score]:
    return [Score.from_json(row) for row in read_result(MEMORY)["rows"]]


def memory() -> str:
    """Return a row for each kind of configuration: percentiles of the errors, and how often the high end holds."""
    rows = []
    for kind, scores in by_kind(_scores()).items():
        cells = [
            percent(error, 2)
            for quantity, shares in (("allocated", (0.5, 0.95)), ("reserved", (0.5, 0.95)), ("loading", (0.95,)))
            for error in errors_at(scores, quantity, *shares)
        ]
        rows.append([kind, len(scores), *cells, percent(share_held(scores))])
    head = (
        "configurations",
        "n",
        "allocated: median",
        "95%",
        "reserved: median",
        "95%",
        "loading: 95%",
        "high end holds",
    )
    return table(head, rows)


def worst() -> str:
    """Return the ten rows with the largest errors and the reason for each."""
    rows = []
    for score in worst_scores(_scores()):
        errors = [f"{score.error(name):+.1%}" for name in ("allocated", "reserved")]
        rows.append([f"{score.measured['reserved'] / 2**20:,.0f}", *errors, score.id, reason(score.id)])
    return table(("reserved (MiB)", "allocated", "reserved", "configuration", "reason"), rows)


def lengths() -> str:
    """Return a row for each order of the lengths: the errors of reserved memory, and how much is reserved in vain."""
    rows = [
        [
            order,
            score["rows"],
            *(percent(score[name], 1) for name in ("median error", "90th percentile", "worst", "held by the high end")),
            *(f"{score[f'measured over allocated, {name}']:.2f}" for name in ("median", "worst")),
        ]
        for order, score in read_result(LENGTHS)["scores"].items()
    ]
    head = ("order", "n", "error: median", "90%", "worst", "high end holds", "reserved over allocated: median", "worst")
    return table(head, rows)


def decisions() -> str:
    """Return how many plans' decisions are right, by kind."""
    rows = read_result(DECISIONS)["rows"]
    outcomes = sorted({row["outcome"].partition(":")[0] for row in rows})
    kinds = dict.fromkeys(row["kind"] for row in rows)
    counts = {kind: Counter(row["outcome"].partition(":")[0] for row in rows if row["kind"] == kind) for kind in kinds}
    counts["all"] = sum(counts.values(), Counter[str]())
    return table(
        ("configurations", "n", *outcomes),
        [[kind, count.total(), *(count[outcome] or "–" for outcome in outcomes)] for kind, count in counts.items()],
    )


def out_of_memory() -> str:
    """Return a row for each scenario: its requests for memory, the cases in which some failed, and their outcomes."""
    result = read_result(OUT_OF_MEMORY)
    outcomes = sorted(result["outcomes"], key=result["outcomes"].get, reverse=True)
    rows = [
        [
            row["scenario"],
            *(_count(row["requests"]), row["every"], row["cases"], row["places"]),
            *_counts(row["outcomes"], outcomes),
        ]
        for row in result["scenarios"]
    ]
    requests = sum(row["requests"] or 0 for row in result["scenarios"])
    places = len(result["failures_by_place"])
    rows.append(["all", _count(requests), "", _count(result["cases"]), places, *_counts(result["outcomes"], outcomes)])
    return table(("scenario", "requests", "N", "cases", "places", *outcomes), rows)


def _counts(counts: Mapping[str, int], names: Sequence[str]) -> list[str]:
    return [_count(counts.get(name)) for name in names]


def _count(number: int | None) -> str:
    return f"{number:,}" if number else "–"


def coverage() -> str:
    """Return how many of the statements for a GPU are executed on one, before and with the laboratory."""
    rows = [
        [
            state,
            *(f"{part['executed']:,} of {part['statements']:,}" for part in (result["for_a_gpu"], *packages.values())),
        ]
        for state, result in read_result(COVERAGE).items()
        for packages in (result["packages"],)
    ]
    return table(("tests", "statements for a GPU", "`training`", "`techniques`"), rows)


def breaks() -> str:
    """Return a row for each defect that was written into the sources: who has seen it, or why nobody can."""
    rows = [
        [row["name"], f"{len(row['failed'])} tests" if row["failed"] else f"not seen. {row['reason']}".strip()]
        for row in read_result(BREAKS)
    ]
    return table(("defect", "seen by"), rows)
