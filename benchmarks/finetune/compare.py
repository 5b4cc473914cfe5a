"""Compare fine-tuning on a CPU with TRL's SFTTrainer and DPOTrainer.

    python -m benchmarks.finetune.compare MODEL DATA.jsonl [--method dpo] [--threads 1] [--effective-batch 8]
        [--micro-batch 4] [--seq-len 512] [--updates 20] [--rounds 3] [--only CONTENDER ...] [--json OUT]

All train LoRA adapters of the same rank and targets on the same rows in fp32, with the same checkpointing, tokens in a
microbatch, effective batch, number of updates, schedule of the learning rate, clipping and seed; `TRL, defaults` keeps
TRL's own values of these, except for the number of updates and the learning rate. A padded microbatch has
`micro-batch` rows, a packed one at most `seq-len` tokens. Every training has its own process, one at a time, and a
different contender begins in each round, which has its own seed. The ratio in CPU time excludes other users of the
machine. The loss of each adapter is then computed on held-out rows in another process. `conversations.py` makes the
data: rows that are not trained are held out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.engine.compare import MALLOC_SETTINGS
from benchmarks.finetune.contenders import CONTENDERS, Question
from benchmarks.finetune.conversations import read_jsonl, write_jsonl

RESULTS = Path(__file__).parents[1] / "results"
PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate")
DEFAULTS = "TRL, defaults"
GOALS = {
    "learnt tokens a second at least TRL's best": "faster",
    "peak memory at most that of TRL's best": "memory",
    "validation loss equal within the range of the rounds": "loss",
}

Measurements = Mapping[str, Any]


def ask(module: str, question: dict[str, Any], threads: int) -> Any:
    """Run a module of this folder in its own process, and return its answer."""
    read_end, write_end = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.finetune.{module}", json.dumps({**question, "to": write_end})],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=(write_end,),
        env={**os.environ, **MALLOC_SETTINGS, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"},
    )
    os.close(write_end)
    # The answer is smaller than the buffer of a pipe, so the process does not wait for a reader.
    stderr = process.communicate()[1].decode()
    with os.fdopen(read_end) as file:
        answer = file.read()
    if process.returncode or not answer:
        raise SystemExit(f"{module} {question.get('name', '')}: status {process.returncode}\n{stderr[-3000:]}")
    return json.loads(answer)


def measure(name: str, question: Question, held_out: Path) -> dict[str, Any]:
    """Train one contender, and return its measurements with the loss of its adapter."""
    with tempfile.TemporaryDirectory() as folder:
        request = {"name": name, "question": asdict(question), "folder": folder}
        measurements: dict[str, Any] = ask("contenders", request, question.threads)
        judged = {"model": question.model, "adapter": measurements.pop("adapter"), "data": str(held_out)}
        loss = ask("held_out", {**judged, "threads": question.threads}, question.threads)
    return {**measurements, "validation_loss": loss}


def interleaved(names: Sequence[str], question: Question, held_out: Path, rounds: int) -> dict[str, list[Measurements]]:
    """Return the measurements of every contender, one for each round."""
    results: dict[str, list[Measurements]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in [*names[first:], *names[:first]]:
            results[name].append(measure(name, replace(question, seed=number), held_out))
            print(round_line(name, results[name][-1]), flush=True)
    return results


def round_line(name: str, measurements: Measurements) -> str:
    return (
        f"{name:22} {measurements['learnt_tokens_per_second']:8.2f} learnt tokens/s, "
        f"{measurements['learnt_tokens_per_cpu_second']:8.2f} per CPU second, "
        f"{measurements['update_seconds']:6.2f} s/update, {measurements['resident_peak_bytes'] / 2**20:6.0f} MiB, "
        f"loss {measurements['validation_loss']:.4f}"
    )


def best_of_trl(results: Mapping[str, Sequence[Measurements]]) -> str:
    """Return the fastest configuration of TRL with the same precision and batches."""
    speeds = {
        name: median(one["learnt_tokens_per_second"] for one in measurements)
        for name, measurements in results.items()
        if name.startswith("TRL") and name != DEFAULTS
    }
    return max(speeds, key=lambda name: speeds[name])


def summaries(results: Mapping[str, Sequence[Measurements]]) -> list[dict[str, Any]]:
    """Return a row per contender: medians over the rounds, and ratios to the best configuration of TRL."""
    best = results[best_of_trl(results)]
    return [
        {
            "contender": name,
            **{
                value: median(one[value] for one in measurements)
                for value in (
                    "learnt_tokens_per_second",
                    "learnt_tokens_per_cpu_second",
                    "update_seconds",
                    "rows_of_update",
                    "mean_microbatch_tokens",
                    "largest_microbatch_tokens",
                    "peak_bytes",
                    "resident_peak_bytes",
                )
            },
            **ratio("faster", "learnt_tokens_per_second", measurements, best),
            **ratio("less_work", "learnt_tokens_per_cpu_second", measurements, best),
            **ratio("memory", "resident_peak_bytes", measurements, best),
            "validation_loss": mean(one["validation_loss"] for one in measurements),
            "validation_loss_range": extremes([one["validation_loss"] for one in measurements]),
            "details": measurements[-1]["details"],
        }
        for name, measurements in results.items()
    ]


def ratio(name: str, value: str, measurements: Sequence[Measurements], best: Sequence[Measurements]) -> dict[str, Any]:
    """Return the median and the range of the ratios to the best of TRL, computed for each round."""
    ratios = [ours[value] / theirs[value] for ours, theirs in zip(measurements, best, strict=True)]
    return {name: median(ratios), f"{name}_range": extremes(ratios)}


def extremes(values: Sequence[float]) -> list[float]:
    return [min(values), max(values)]


def goal_results(rows: Sequence[Measurements], best: str) -> dict[str, dict[str, bool]]:
    """Return for each contender of Shoestring whether each goal is reached."""
    theirs = next(row for row in rows if row["contender"] == best)
    low, high = theirs["validation_loss_range"]
    results = {}
    for row in rows:
        if row["contender"].startswith("Shoestring"):
            lowest, highest = row["validation_loss_range"]
            reached = (row["faster"] >= 1, row["memory"] <= 1, lowest <= high and low <= highest)
            results[row["contender"]] = dict(zip(GOALS, reached, strict=True))
    return results


def table(rows: Sequence[Measurements]) -> str:
    """Format a Markdown table."""
    lines = [
        "| contender | learnt tokens/s | of TRL's best | in CPU time | update | rows an update | tokens a microbatch "
        "| peak | of TRL's best | validation loss |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        low, high = row["faster_range"]
        cells = [
            row["contender"],
            f"{row['learnt_tokens_per_second']:.2f}",
            f"{row['faster']:.2f} ({low:.2f} to {high:.2f})",
            f"{row['less_work']:.2f}",
            f"{row['update_seconds']:.2f} s",
            f"{row['rows_of_update']:.1f}",
            f"{row['mean_microbatch_tokens']:.0f}, at most {row['largest_microbatch_tokens']:.0f}",
            f"{row['resident_peak_bytes'] / 2**20:,.0f} MiB",
            f"{row['memory']:.2f}",
            f"{row['validation_loss']:.4f} ({' to '.join(f'{end:.4f}' for end in row['validation_loss_range'])})",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def split(data: Path, rows: int, held_out: int, folder: Path) -> tuple[Path, Path]:
    """Write the rows to train and the rows to hold out into files of their own.

    Raises SystemExit if the data have too few rows.
    """
    read = read_jsonl(data)
    if len(read) < rows + held_out:
        raise SystemExit(f"{data} has {len(read)} rows: {rows} to train and {held_out} to hold out are needed")
    parts = folder / "train.jsonl", folder / "held_out.jsonl"
    for part, chosen in zip(parts, (read[:rows], read[rows : rows + held_out]), strict=True):
        write_jsonl(part, chosen)
    return parts


def environment() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "load before": os.getloadavg()[0],
        **{package: metadata.version(package) for package in PACKAGES},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("data", type=Path, metavar="DATA.jsonl")
    parser.add_argument("--method", choices=CONTENDERS, default="sft")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--effective-batch", type=int, default=8)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--checkpointing", choices=["no", "full"], default="full")
    parser.add_argument("--lora-r", type=int, default=16)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--held-out", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", metavar="CONTENDER")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    names = arguments.only or list(CONTENDERS[arguments.method])
    if unknown := [name for name in names if name not in CONTENDERS[arguments.method]]:
        parser.error(f"unknown contender {', '.join(unknown)}; they are: {', '.join(CONTENDERS[arguments.method])}")
    if all(not name.startswith("TRL") or name == DEFAULTS for name in names):
        parser.error(f"one configuration of TRL besides {DEFAULTS!r} is needed")
    machine = environment()
    with tempfile.TemporaryDirectory() as folder:
        data, held_out = split(
            arguments.data, arguments.updates * arguments.effective_batch, arguments.held_out, Path(folder)
        )
        question = Question(
            model=str(Path(arguments.model).resolve()),
            data=str(data),
            method=arguments.method,
            updates=arguments.updates,
            effective_batch=arguments.effective_batch,
            micro_batch=arguments.micro_batch,
            seq_len=arguments.seq_len,
            checkpointing=arguments.checkpointing == "full",
            lora_r=arguments.lora_r,
            learning_rate=arguments.learning_rate or (2e-4 if arguments.method == "sft" else 5e-6),
            seed=0,
            threads=arguments.threads,
        )
        results = interleaved(names, question, held_out, arguments.rounds)
        leak = {"model": question.model, "data": question.data, "threads": question.threads}
        packed_difference = ask("held_out", leak, question.threads)
    rows, best = summaries(results), best_of_trl(results)
    print(table(rows))
    print(
        f"The best configuration of TRL: {best}. Logits in its bins differ by {packed_difference:.1e} of the largest."
    )
    for name, goals in goal_results(rows, best).items():
        for goal, reached in goals.items():
            print(f"{'reached' if reached else 'NOT REACHED'}: {name}: {goal}")
    content = {
        "environment": {**machine, "load after": os.getloadavg()[0]},
        "question": {name: value for name, value in asdict(question).items() if name not in ("data", "seed")},
        "best of TRL": best,
        "difference in bins of TRL": packed_difference,
        "goals": goal_results(rows, best),
        "rows": rows,
        "rounds": results,
    }
    out = arguments.json or RESULTS / f"finetune_{arguments.method}.json"
    out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
