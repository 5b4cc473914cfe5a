"""The five full-size workloads planned for Kaggle, with as much data as their guides have: a Markdown table and the
commands behind it, for docs/claims.md.

    python benchmarks/plan/claims.py [RECIPE ...]

A plan counts the epochs of the data that are there, by default small ones. Here its seconds of an update are taken as
often as the guide's data ask for, and its own function cuts that into sessions. Runs are planned on one GPU, so a plan
for two T4s is the one for one; the rows "both GPUs" are predictions for two, which nothing here can train on yet. Needs
no GPU; six minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shoestring.config import parse_pairs
from shoestring.estimate.disk import checkpoint_bytes
from shoestring.hardware.catalog import Target
from shoestring.hardware.targets import find
from shoestring.plan.candidates import Candidate, candidate
from shoestring.plan.plan import Plan, make_plan
from shoestring.plan.sessions import sessions
from shoestring.recipe.finding import choose
from shoestring.trace import Tracer
from shoestring.units import seconds_text

ONE, TWO = "kaggle-t4", "kaggle-t4x2"


@dataclass(frozen=True, kw_only=True)
class Row:
    """Settings, in words and for the command line, and how many updates the guide's data make."""

    recipe: str
    setting: str
    options: str = ""
    updates: int | None = None
    """Of an epoch; None where the guide's number of samples is not known."""
    epochs: int = 1
    both: str | None = None
    """Settings on each of two GPUs, where that is asked as well."""

    @property
    def command(self) -> str:
        chosen = "".join(f" --set {option}" for option in self.options.split())
        return f"shoestring plan {self.recipe} --on {ONE} --on {TWO}{chosen}"


VQA, LEGAL, CHART, CLOUD = 1100, 70157, 5000, 30555
"""Updates of an epoch: 9,900 of 11,000 samples by 9; 1,122,507 sentences by 16; 10,000 prompts by 2; 122,218 patches by
4."""

ROWS = (
    Row(
        recipe="vqa",
        setting="the guide's",
        options="forwards=guide micro_batch=3 precision=fp16 checkpointing=12",
        updates=VQA,
        epochs=100,
        both="forwards=guide micro_batch=3 precision=fp16 checkpointing=12",
    ),
    Row(recipe="vqa", setting="chosen", updates=VQA, epochs=100),
    Row(recipe="vqa", setting="chosen, weights alone in fp16", options="light_weights=fp16", updates=VQA, epochs=100),
    Row(recipe="vqa", setting="chosen, 8-bit AdamW", options="optimizer_states=8bit", updates=VQA, epochs=100),
    Row(
        recipe="legal",
        setting="the guide's: batch 16, fp32",
        options="micro_batch=16 precision=fp32",
        updates=LEGAL,
        epochs=5,
        both="micro_batch=8 precision=fp32 checkpointing=no",
    ),
    Row(
        recipe="legal",
        setting="the guide's: batch 8, fp16",
        options="micro_batch=8 precision=fp16",
        updates=LEGAL,
        epochs=5,
        both="micro_batch=8 precision=fp16 checkpointing=no",
    ),
    Row(recipe="legal", setting="chosen", updates=LEGAL, epochs=5),
    Row(recipe="legal", setting="chosen, 128 tokens at most", options="seq_len=128", updates=LEGAL, epochs=5),
    Row(recipe="temporal", setting="LSTM, fp16", options="architecture=lstm micro_batch=256 precision=fp16"),
    Row(
        recipe="temporal",
        setting="Transformer, fp16",
        options="architecture=transformer micro_batch=256 precision=fp16",
    ),
    Row(
        recipe="temporal",
        setting="MLP, fp16",
        options="architecture=mlp effective_batch=512 micro_batch=512 precision=fp16",
    ),
    Row(
        recipe="cloud",
        setting="the guide's: batch 4, fp32",
        options="micro_batch=4 precision=fp32",
        updates=CLOUD,
        epochs=10,
        both="micro_batch=2 precision=fp32 checkpointing=no",
    ),
    Row(recipe="cloud", setting="chosen", updates=CLOUD, epochs=10),
    Row(
        recipe="chart",
        setting="the guide's, fp16, checkpointed; without writing",
        options="generations=2 effective_batch=4 micro_batch=1 precision=fp16 checkpointing=full",
        updates=CHART,
        both="generations=2 effective_batch=4 micro_batch=1 precision=fp16 checkpointing=full sharding=zero3",
    ),
    Row(
        recipe="chart",
        setting="chosen; without writing",
        options="generations=2 effective_batch=4",
        updates=CHART,
    ),
)


def main(recipes: Sequence[str]) -> None:
    wanted = [row for row in ROWS if not recipes or row.recipe in recipes]
    print(
        "| recipe | settings | on | micro_batch, precision, checkpointing | memory at most | seconds an update"
        " | epoch | all | sessions | weeks | disk | verdict |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for row in wanted:
        for line in lines(row):
            print(f"| {' | '.join(line)} |", flush=True)
    print("\n```", *(row.command for row in wanted), "```", sep="\n")


def lines(row: Row) -> Iterator[list[str]]:
    """One for one GPU, and one for both where that is asked."""
    loaded, settings = choose(row.recipe, parse_pairs(row.options.split()))
    yield planned(row, make_plan(loaded, find(ONE), settings))
    if row.both:
        loaded, settings = choose(row.recipe, parse_pairs(row.both.split()))
        target = find(TWO)
        with Tracer(loaded) as tracer:
            yield on_both(row, candidate(tracer, loaded, target, settings, gpus=target.gpus), target)


def planned(row: Row, plan: Plan) -> list[str]:
    time, verdict = plan.time, plan.verdict if plan.fits else f"{plan.verdict}: {plan.binding.name}"
    seconds = (time.predicted.update_seconds, time.low.update_seconds, time.high.update_seconds)
    disk = f"{plan.disk.peak_bytes / 1e9:.1f} GB"
    cost = costs(row, plan.target, seconds, plan.disk.full_checkpoint_bytes)
    return [row.recipe, row.setting, "one T4", *shown(plan), *cost, disk, verdict]


def on_both(row: Row, found: Candidate, target: Target) -> list[str]:
    assert found.time is not None
    seconds = (found.time.value, found.time.low, found.time.high)
    cost = costs(row, target, seconds, checkpoint_bytes(found.trace).full)
    verdict = "would fit" if found.fits else "would not fit"
    return [row.recipe, row.setting, "both T4s", *shown(found), *cost, "-", verdict]


def shown(found: Plan | Candidate) -> list[str]:
    chosen = found.settings
    return [
        f"{chosen.micro_batch}, {chosen.precision}, {chosen.checkpointing}",
        f"{found.memory.high_bytes / 1e9:.2f} GB",
    ]


def costs(row: Row, target: Target, seconds: Sequence[float | None], save_bytes: int) -> list[str]:
    """Update, epoch, total, sessions and weeks of the guide's data; '-' where nobody knows how many those are."""
    value, low, high = seconds
    assert value and low and high and target.platform
    update = f"{value:.3g} ({low:.3g} to {high:.3g})"
    if row.updates is None:
        return [update, "-", "-", "-", "-"]
    cut = sessions(
        total_updates=row.updates * row.epochs,
        updates_per_epoch=row.updates,
        update_seconds=value,
        session_hours=target.platform.session_hours,
        weekly_hours=target.platform.weekly_gpu_hours,
        save_bytes=save_bytes,
    )
    assert cut and target.platform.weekly_gpu_hours
    total = value * row.updates * row.epochs
    weeks = sum(session.hours for session in cut) / target.platform.weekly_gpu_hours
    return [update, seconds_text(value * row.updates), seconds_text(total), str(len(cut)), f"{weeks:.1f}"]


if __name__ == "__main__":
    main(sys.argv[1:])
