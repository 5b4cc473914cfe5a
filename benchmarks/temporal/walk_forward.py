"""Walk-forward evaluation of the temporal recipe on the GOOG bars, compared with always predicting one class.

    python -m benchmarks.temporal.walk_forward [--size tiny] [--folds 5] [--epochs 50] [--json OUT] [ARCHITECTURE...]

Every fold is a run of the engine on an expanding window of the 1,047 daily bars included in matplotlib; its test block
is later than all data of the training. All four networks at size=tiny take some minutes. The default output is
benchmarks/results/temporal_walk_forward.json.
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
from shoestring_recipes.temporal import Options, Temporal
from shoestring_recipes.temporal.architectures import ARCHITECTURES

RESULT = Path(__file__).parents[1] / "results" / "temporal_walk_forward.json"

NAMES = {
    "accuracy": "of the best weights",
    "hindsight": "of always naming the class that is most frequent in the test block itself",
    "foresight": "of always naming the class that was most frequent in training",
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("architectures", nargs="*", metavar="ARCHITECTURE", help="the default is all")
    parser.add_argument("--size", choices=("full", "tiny"), default="tiny")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=Options().epochs)
    parser.add_argument("--json", type=Path, default=RESULT)
    options = parser.parse_args(arguments)
    rows = []
    for architecture in options.architectures or ARCHITECTURES:
        recipe_options = {"architecture": architecture, "size": options.size, "epochs": options.epochs}
        plan = shoestring.plan("temporal", on="cpu", **recipe_options)
        start = time.monotonic()
        folds = [run_fold(f"{number}/{options.folds}", plan, recipe_options) for number in range(1, options.folds + 1)]
        rows.append({**recipe_options, "seconds": time.monotonic() - start, **summary(folds), "folds": folds})
        print(format_row(rows[-1]), flush=True)
    content = {"data": "1,047 daily bars of GOOG, 2004 to 2008", "names": NAMES, "rows": rows}
    options.json.write_text(json.dumps(content, indent=1) + "\n")


def run_fold(fold: str, plan: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Run one fold and return its numbers of training and test samples and its accuracies by `NAMES`."""
    parts = Temporal(Options(fold=fold)).data()
    train, test = parts["train"].labels, parts["test"].labels
    with tempfile.TemporaryDirectory() as run:
        outcome = shoestring.train("temporal", plan, run=Path(run) / "run", on="cpu", **options, fold=fold)
    if outcome.status != "finished":
        raise SystemExit(f"fold {fold}: {outcome.reason}")
    metrics = outcome.metrics["test"]
    return {
        "fold": fold,
        "train_samples": len(train),
        "test_samples": len(test),
        "updates": outcome.update,
        "accuracy": metrics["accuracy"],
        "accuracy_error": metrics["accuracy_error"],
        "hindsight": metrics["majority_accuracy"],
        "foresight": float((test == train.bincount().argmax()).double().mean()),
        "macro_f1": metrics["macro_f1"],
    }


def summary(folds: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the mean and the standard deviation over the folds."""
    return {
        name: {
            "mean": mean(fold[name] for fold in folds),
            "deviation": stdev(fold[name] for fold in folds) if len(folds) > 1 else 0.0,
        }
        for name in (*NAMES, "macro_f1")
    }


def format_row(row: Mapping[str, Any]) -> str:
    accuracies = (f"{name} {row[name]['mean']:.3f} +- {row[name]['deviation']:.3f}" for name in NAMES)
    return f"{row['architecture']:12} {row['size']:5} {'  '.join(accuracies)}  {row['seconds']:.0f} s"


if __name__ == "__main__":
    main()
