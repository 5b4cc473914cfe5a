"""The recipes beside the code of the guides, and how well they predict."""

from benchmarks.tables.markdown import Row, read_result, table

MEMORY_GOAL, CHECKPOINT_GOAL = 0.5, 0.25
"""The intended shares of the guide's memory and checkpoint, as in `benchmarks/recipes/compare.py`."""


def recipes() -> str:
    """Write the comparison with the guides; `(no)` marks a goal that is not reached."""
    head = (
        "case",
        "samples per second",
        "speedup (goal)",
        "peak memory",
        "share",
        "checkpoint",
        "share",
        "loss",
        "settings of Shoestring",
    )
    return table(head, map(_compared, read_result("recipes_cpu")["rows"]))


def _compared(row: Row) -> list[str]:
    guide, ours = row["guide"], row["shoestring"]
    score = "" if ours["judged_by"] == "loss" else f"{ours['judged_by']} "
    return [
        row["case"] + row["way"].removeprefix("shoestring"),
        f"{_rate(guide['samples_per_second'])} / {_rate(ours['samples_per_second'])}",
        f"{row['faster']:.1f}x ({row['goal']:g}x)" + _missed(row["faster"] >= row["goal"]),
        f"{guide['peak_bytes'] / 2**20:,.0f} / {ours['peak_bytes'] / 2**20:,.0f} MiB",
        f"{row['memory']:.2f}" + _missed(row["memory"] <= MEMORY_GOAL),
        f"{guide['checkpoint_bytes'] / 1e6:,.2f} / {ours['checkpoint_bytes'] / 1e6:,.2f} MB",
        f"{row['checkpoint']:.2f}" + _missed(row["checkpoint"] <= CHECKPOINT_GOAL),
        f"{score}{guide['loss']:.3f} / {ours['loss']:.3f}",
        f"`micro_batch={ours['settings']['micro_batch']}`, `{ours['settings']['precision']}`",
    ]


def _rate(samples_per_second: float) -> str:
    return f"{samples_per_second:,.0f}" if samples_per_second >= 100 else f"{samples_per_second:.3g}"


def _missed(reached: bool) -> str:
    return "" if reached else " (no)"


def walk_forward() -> str:
    """Write the accuracy of the temporal networks beside those of constant predictions."""
    titles = {"lstm": "LSTM", "transformer": "Transformer", "mlp": "MLP", "ensemble": "ensemble"}
    head = ("network", "accuracy", "most frequent class of the test part", "most frequent class of the training part")
    return table(
        head,
        (
            [titles[row["architecture"]], *(_mean(row[key]) for key in ("accuracy", "hindsight", "foresight"))]
            for row in read_result("temporal_walk_forward")["rows"]
        ),
    )


def legal() -> str:
    """Write the scores of the legal model beside those of naming the most frequent role."""
    titles = {"macro_f1": "macro F1", "weighted_f1": "weighted F1", "accuracy": "accuracy"}
    means = read_result("legal_law_ai")["mean"]
    return table(
        ("metric", "the model", "most frequent role"),
        ([title, _mean(means[key]), f"{means[key]['majority']:.2f}"] for key, title in titles.items()),
    )


def _mean(value: Row) -> str:
    return f"{value['mean']:.2f} ± {value['deviation']:.2f}"
