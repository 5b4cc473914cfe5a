"""Plans of the five full-size workloads for Kaggle with the data of their guides, for legal and cloud the complete
public data: a Markdown table and its commands, for docs/claims.md.

    python benchmarks/plan/claims.py [RECIPE ...]

A plan counts the epochs of the available data, by default small data sets. Here its seconds per update are multiplied
by the number of updates of these data, and the plan's own function divides the total into sessions. Every row is
planned for one T4 and for two, of which the plan may use one. It needs no GPU and takes fifteen minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shoestring.config import parse_pairs
from shoestring.hardware.catalog import Target
from shoestring.hardware.targets import find
from shoestring.plan.plan import Plan, make_plan
from shoestring.plan.sessions import sessions
from shoestring.recipe.finding import choose
from shoestring.units import seconds_text

ONE_GPU, TWO_GPUS = "kaggle-t4", "kaggle-t4x2"


@dataclass(frozen=True, kw_only=True)
class Row:
    """Settings as a description and for the command line, and the number of updates of the data."""

    recipe: str
    setting: str
    options: str = ""
    updates: int | None = None
    """Per epoch; None if the number of samples is unknown."""
    epochs: int = 1
    both: str = ""
    """Settings for two GPUs, if they are not the same."""

    @property
    def command(self) -> str:
        options = "".join(f" --set {option}" for option in self.options.split())
        return f"shoestring plan {self.recipe} --on {ONE_GPU} --on {TWO_GPUS}{options}"


VQA, LEGAL, CHART, CLOUD = 1100, 70157, 5000, 30555
"""Updates per epoch: 9,900 of 11,000 samples by 9; all 1,122,507 sentences of LegalSeg by 16, where the guide counts
450,000; 10,000 prompts by 2; all 122,218 patches of SEN12MS-CR by 4, where the guide trains on about 1,000."""

ROWS = (
    Row(
        recipe="vqa",
        setting="the guide's",
        options="forwards=guide micro_batch=3 precision=fp16 checkpointing=12",
        updates=VQA,
        epochs=100,
        both="forwards=guide micro_batch=3 precision=fp16 checkpointing=12 gpus=2",
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
        both="micro_batch=8 precision=fp32 checkpointing=no gpus=2",
    ),
    Row(
        recipe="legal",
        setting="the guide's: batch 8, fp16",
        options="micro_batch=8 precision=fp16",
        updates=LEGAL,
        epochs=5,
        both="micro_batch=8 precision=fp16 checkpointing=no gpus=2",
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
        both="micro_batch=2 precision=fp32 checkpointing=no gpus=2",
    ),
    Row(recipe="cloud", setting="chosen", updates=CLOUD, epochs=10),
    Row(
        recipe="chart",
        setting="the guide's, fp16, checkpointed; without writing",
        options="generations=2 effective_batch=4 micro_batch=1 precision=fp16 checkpointing=full",
        updates=CHART,
        both="generations=2 effective_batch=4 micro_batch=1 precision=fp16 checkpointing=full gpus=2",
    ),
    Row(
        recipe="chart",
        setting="chosen; without writing",
        options="generations=2 effective_batch=4",
        updates=CHART,
    ),
)


def main(recipes: Sequence[str]) -> None:
    rows = [row for row in ROWS if not recipes or row.recipe in recipes]
    print(
        "| recipe | settings | on | micro_batch, precision, checkpointing | memory at most | seconds an update"
        " | epoch | all | sessions | weeks | disk | verdict |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for row in rows:
        for line in plan_lines(row):
            print(f"| {' | '.join(line)} |", flush=True)
    print("\n```", *(row.command for row in rows), "```", sep="\n")


def plan_lines(row: Row) -> Iterator[list[str]]:
    """Yield a line for one GPU and a line for two."""
    for target, options in ((ONE_GPU, row.options), (TWO_GPUS, row.both or row.options)):
        loaded, settings = choose(row.recipe, parse_pairs(options.split()))
        yield plan_line(row, make_plan(loaded, find(target), settings))


def plan_line(row: Row, plan: Plan) -> list[str]:
    time, verdict = plan.time, plan.verdict if plan.fits else f"{plan.verdict}: {plan.binding.name}"
    seconds = (time.predicted.update_seconds, time.low.update_seconds, time.high.update_seconds)
    disk = f"{plan.disk.peak_bytes / 1e9:.1f} GB"
    cost = costs(row, plan.target, seconds, plan.disk.full_checkpoint_bytes)
    both = "both T4s" if plan.settings.sharding == "ddp" else f"both T4s, {plan.settings.sharding}"
    place = both if plan.settings.gpus == 2 else "one of two T4s" if plan.target.gpus == 2 else "one T4"
    return [row.recipe, row.setting, place, *settings_cells(plan), *cost, disk, verdict]


def settings_cells(plan: Plan) -> list[str]:
    settings = plan.settings
    return [
        f"{settings.micro_batch}, {settings.precision}, {settings.checkpointing}",
        f"{plan.memory.high_bytes / 1e9:.2f} GB",
    ]


def costs(row: Row, target: Target, seconds: Sequence[float | None], save_bytes: int) -> list[str]:
    """Format update, epoch, total, sessions and weeks for the row's data; '-' if its number of samples is unknown."""
    value, low, high = seconds
    assert value and low and high and target.platform
    update = f"{value:.3g} ({low:.3g} to {high:.3g})"
    if row.updates is None:
        return [update, "-", "-", "-", "-"]
    session_list = sessions(
        total_updates=row.updates * row.epochs,
        updates_per_epoch=row.updates,
        update_seconds=value,
        session_hours=target.platform.session_hours,
        weekly_hours=target.platform.weekly_gpu_hours,
        save_bytes=save_bytes,
    )
    assert session_list and target.platform.weekly_gpu_hours
    total = value * row.updates * row.epochs
    weeks = sum(session.hours for session in session_list) / target.platform.weekly_gpu_hours
    return [update, seconds_text(value * row.updates), seconds_text(total), str(len(session_list)), f"{weeks:.1f}"]


if __name__ == "__main__":
    main(sys.argv[1:])
