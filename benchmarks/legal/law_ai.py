"""Macro-F1 of the small hierarchical BiLSTM-CRF on real judgments, over five folds of whole judgments.

    python -m benchmarks.legal.law_ai DATA_DIR [--folds 5] [--epochs 20] [--json OUT]

DATA_DIR contains the judgments of Law-AI/semantic-segmentation (MIT), one file each. Every fold is a run of the engine;
the total is about two minutes of one core. The results are those of the judgments of the fold, with the weights that
were best on other judgments.
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

OPTIONS: dict[str, Any] = {
    "architecture": "hier_bilstm_crf",
    "size": "tiny",
    "roles": "law-ai",
    "effective_batch": 2,
    "micro_batch": 2,
    "precision": "fp32",
}
MEANS = ("macro_f1", "weighted_f1", "accuracy")

PUBLISHED = [
    {
        "what": "Hier_BiLSTM-CRF on LegalSeg, 4,984 judgments to train on, 712 to test",
        "source": "images of the README of ShubhamKumarNigam/LegalSeg (2025)",
        "f1": 0.77,
        "accuracy": 0.62,
    },
    {
        "what": "Hier-BiLSTM-CRF on these judgments, all 50, in 5 folds",
        "source": "Bhattacharya et al., JURIX 2019 (arXiv 1911.05405); neither README nor code states its macro-F1",
        "macro_f1": None,
    },
]
DIFFERS = [
    "40 of the 50 judgments; folds by chance, not by area of law",
    "theirs reports the best of 300 epochs by the macro-F1 of the very fold that is reported (train.py); here another "
    "tenth of the judgments decides",
    "theirs evaluates in training mode, with dropout and random first states of the LSTMs (train.py, submodels.py)",
    "words of 32, sentences of 48 and judgments of 64 numbers in place of 100, 200 and 200; hashed words; 20 epochs",
    "their better variant begins with sentence vectors trained on other judgments of the same court",
]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    recipe_options = {**OPTIONS, "data": options.data, "epochs": options.epochs}
    plan = shoestring.plan("legal", on="cpu", **recipe_options)
    folds = []
    for number in range(1, options.folds + 1):
        start, cpu_start = time.monotonic(), time.process_time()
        with tempfile.TemporaryDirectory() as run:
            outcome = shoestring.train(
                "legal", plan, run=Path(run) / "run", on="cpu", **recipe_options, fold=f"{number}/{options.folds}"
            )
        seconds = {"seconds": time.monotonic() - start, "cpu_seconds": time.process_time() - cpu_start}
        folds.append({"fold": number, "updates": outcome.update, **seconds, "test": outcome.metrics["test"]})
        print(json.dumps({name: folds[-1]["test"][name] for name in MEANS}), flush=True)
    answer = {
        "options": {name: str(value) if isinstance(value, Path) else value for name, value in recipe_options.items()
                    if name != "data"},
        "mean": summary([fold["test"] for fold in folds]),
        "together": pooled_scores([fold["test"]["classes"] for fold in folds]),
        "published": PUBLISHED,
        "differs": DIFFERS,
        "folds": folds,
    }  # fmt: skip
    text = json.dumps(answer, indent=1)
    if options.json:
        options.json.write_text(text + "\n")
    print(text)


def summary(tests: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return mean and standard deviation over the folds, and the mean of always predicting the most frequent role."""
    return {
        name: {
            "mean": mean(test[name] for test in tests),
            "deviation": stdev(test[name] for test in tests) if len(tests) > 1 else 0.0,
            "majority": mean(test[f"majority_{name}"] for test in tests),
        }
        for name in MEANS
    }


def pooled_scores(folds: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, Any]:
    """Return the F1 of each role and their mean over the sentences of all folds, which contain every judgment once."""
    f1 = {}
    for role in folds[0]:
        labels = sum(fold[role]["true"] + fold[role]["predicted"] for fold in folds)
        correct = sum(fold[role]["recall"] * fold[role]["true"] for fold in folds)
        f1[role] = 2 * correct / labels if labels else 0.0
    return {"macro_f1": mean(f1.values()), "f1": f1}


if __name__ == "__main__":
    main()
