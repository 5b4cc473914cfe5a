"""The laboratory: predicted memory and decisions of plans beside PyTorch's allocator on a simulated GPU."""

from collections import Counter

from benchmarks.lab.memory.reasons import reason
from benchmarks.lab.memory.scores import Score, by_kind, errors_at, share_held
from benchmarks.lab.memory.scores import worst as worst_scores
from benchmarks.tables.markdown import percent, read_result, table

MEMORY = "lab-memory"
DECISIONS = "lab-decisions"


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
