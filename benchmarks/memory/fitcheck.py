"""Compare the memory of LoRA steps with the estimates of FitCheck 0.3.1, side by side in one run.

    python benchmarks/memory/fitcheck.py ROWS.csv --fitcheck VENV/bin/fitcheck --json OUT [--configs DIR] [--only ID,ID]

FitCheck's formulas are fitted to measurements of this archive, our estimates to none. It reads configurations from a
cache of the Hub, which is made here from the folder of configurations; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.memory import lora, score
from benchmarks.memory.cases import Row, configuration, number

from shoestring.base.units import MIB


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Predicted bytes of the tensors, and of the whole process."""

    tensors: float
    process: float


MEASURED = {"tensors": "allocated_bytes", "process": "process_bytes"}


def command(program: str, row: Row) -> list[str]:
    """Return FitCheck's command for a row, by the archive's own flags."""
    words = [program, row["model"], "--quant", row["quantization"], "--precision", "fp16", "--gpu", "t4", "--json"]
    words += ["--lora-r", row["lora_r"], "--batch-size", row["micro_batch"], "--seq-len", row["seq_len"]]
    words += ["--grad-checkpoint"] if row["checkpointing"] == "1" else []
    # Kernels that never store the matrix of scores are its Flash Attention.
    return [*words, "--flash-attn"] if row["attention"] == "sdpa" else words


def fill_cache(models: Iterable[str], configs: Path, home: Path) -> None:
    """Store the configurations as a cache of the Hub below `home`. Raises UsageError for a missing one."""
    for model in models:
        repository = home / "hub" / f"models--{model.replace('/', '--')}"
        snapshot = repository / "snapshots" / "0"
        snapshot.mkdir(parents=True)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text("0", encoding="utf-8")
        (snapshot / "config.json").write_bytes(configuration(model, configs).read_bytes())


def fitcheck_predictions(rows: Sequence[Row], program: str, configs: Path) -> dict[str, Prediction]:
    """Return FitCheck's prediction of each row, by its id."""
    predictions = {}
    with tempfile.TemporaryDirectory() as folder:
        fill_cache({row["model"] for row in rows}, configs, Path(folder))
        environment = {**os.environ, "HF_HOME": folder, "HF_HUB_OFFLINE": "1"}
        for row in rows:
            # Status 1 is a configuration that does not fit.
            process = subprocess.run(command(program, row), env=environment, capture_output=True, check=False)
            memory = json.loads(process.stdout)["memory_mib"]
            tensors = (memory["total"] - memory["overhead"]) * MIB
            predictions[row["id"]] = Prediction(tensors=tensors, process=memory["total"] * MIB)
    return predictions


def own_predictions(rows: Sequence[Row], configs: Path) -> dict[str, Prediction]:
    """Return our prediction of each row whose process was measured, by its id."""
    score.import_once()
    return {
        row_score.row["id"]: Prediction(
            tensors=row_score.estimate.value, process=row_score.others["process"].estimate.value
        )
        for row_score in score.score_rows(rows, lora.ROWS, configs)
        if "process" in row_score.others
    }


def table(rows: Sequence[Row], predictions: dict[str, dict[str, Prediction]]) -> Iterator[str]:
    """Yield the lines of a table with the relative errors of each estimator."""
    yield f"{'quantity':<10}{'rows':<8}{'estimator':<12}{'n':>4}{'median':>9}{'p90':>9}{'worst':>9}{'under':>8}"
    for quantity, column in MEASURED.items():
        for group in ("nf4", "none", "all"):
            for name, by_id in predictions.items():
                errors = [
                    getattr(by_id[row["id"]], quantity) / measured - 1
                    for row in rows
                    if group in (row["quantization"], "all") and row["id"] in by_id
                    if (measured := number(row, column))
                ]
                if not errors:  # --only may choose rows of one group
                    continue
                sizes = [abs(error) for error in errors]
                shares = (median(sizes), score.percentile(sizes, 0.9), max(errors, key=abs))
                under = sum(error < 0 for error in errors) / len(errors)
                texts = "".join(f"{share:>9.2%}" for share in shares)
                yield f"{quantity:<10}{group:<8}{name:<12}{len(errors):>4}{texts}{under:>8.0%}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--fitcheck", required=True, help="the program: pip install fitcheck-llm==0.3.1")
    parser.add_argument("--configs", type=Path, default=score.CONFIGS)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--only", help="comma-separated ids")
    options = parser.parse_args(arguments)
    with options.rows.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["process_bytes"]]
    if options.only:
        rows = [row for row in rows if row["id"] in options.only.split(",")]
    predictions = {
        "shoestring": own_predictions(rows, options.configs),
        "fitcheck": fitcheck_predictions(rows, options.fitcheck, options.configs),
    }
    print("\n".join(table(rows, predictions)))
    content: list[dict[str, Any]] = [
        {
            "id": row["id"],
            **{quantity: number(row, column) for quantity, column in MEASURED.items()},
            **{name: vars(by_id[row["id"]]) for name, by_id in predictions.items() if row["id"] in by_id},
        }
        for row in rows
    ]
    options.json.write_text(json.dumps({"rows": content}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
