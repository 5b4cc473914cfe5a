"""The temporal recipe walked forward over the GOOG bars: is it better than always naming one class?

    python -m benchmarks.temporal.walk_forward [--size tiny] [--folds 5] [--epochs 50] [--json OUT] [ARCHITECTURE...]

Every fold is a run of the engine on an expanding window of the 1,047 daily bars that matplotlib brings along; its test
block lies after all that its model has seen. Some minutes for all four networks at size=tiny; written to
benchmarks/results/temporal_walk_forward.json unless said otherwise.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import shoestring
from shoestring.recipes.temporal import Options, Temporal
from shoestring.recipes.temporal.architectures import ARCHITECTURES

RESULT = Path(__file__).parents[1] / "results" / "temporal_walk_forward.json"

NAMES = {
    "accuracy": "of the best weights",
    "hindsight": "of always naming the class that is most frequent in the test block itself",
    "foresight": "of always naming the class that was most frequent in training",
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("architectures", nargs="*", metavar="ARCHITECTURE", help="by default all")
    parser.add_argument("--size", choices=("full", "tiny"), default="tiny")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=Options().epochs)
    parser.add_argument("--json", type=Path, default=RESULT)
    chosen = parser.parse_args(arguments)
    rows = []
    for architecture in chosen.architectures or ARCHITECTURES:
        options = {"architecture": architecture, "size": chosen.size, "epochs": chosen.epochs}
        plan = shoestring.plan("temporal", on="cpu", **options)
        began = time.monotonic()
        folds = [walked(f"{number}/{chosen.folds}", plan, options) for number in range(1, chosen.folds + 1)]
        rows.append({**options, "seconds": time.monotonic() - began, **summary(folds), "folds": folds})
        print(line(rows[-1]), flush=True)
    said = {"data": "1,047 daily bars of GOOG, 2004 to 2008", "names": NAMES, "rows": rows}
    chosen.json.write_text(json.dumps(said, indent=1) + "\n")


def walked(fold: str, plan: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """One fold: how many samples trained and tested, and accuracies by `NAMES`."""
    parts = Temporal(Options(fold=fold)).data()
    train, test = parts["train"].labels, parts["test"].labels
    with tempfile.TemporaryDirectory() as run:
        outcome = shoestring.train("temporal", plan, run=Path(run) / "run", on="cpu", **options, fold=fold)
    if outcome.status != "finished":
        raise SystemExit(f"fold {fold}: {outcome.reason}")
    found = outcome.metrics["test"]
    return {
        "fold": fold,
        "train_samples": len(train),
        "test_samples": len(test),
        "updates": outcome.update,
        "accuracy": found["accuracy"],
        "accuracy_error": found["accuracy_error"],
        "hindsight": found["majority_accuracy"],
        "foresight": float((test == train.bincount().argmax()).double().mean()),
        "macro_f1": found["macro_f1"],
    }


def summary(folds: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Mean over the folds and the standard deviation between them."""
    return {
        name: {
            "mean": mean(fold[name] for fold in folds),
            "deviation": stdev(fold[name] for fold in folds) if len(folds) > 1 else 0.0,
        }
        for name in (*NAMES, "macro_f1")
    }


def line(row: Mapping[str, Any]) -> str:
    said = (f"{name} {row[name]['mean']:.3f} +- {row[name]['deviation']:.3f}" for name in NAMES)
    return f"{row['architecture']:12} {row['size']:5} {'  '.join(said)}  {row['seconds']:.0f} s"


if __name__ == "__main__":
    main()
