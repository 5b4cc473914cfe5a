"""Memory of the five full-size models with the settings of their guides, beside the guides' numbers: a Markdown table
and its commands.

    python benchmarks/memory/workloads.py [RECIPE ...]

Every row is a result of `shoestring estimate ... --json`. docs/explanation/workloads.md explains the differences. It
needs no GPU and takes a few minutes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

STATES = ("weights", "gradients", "optimizer states", "gathered weights")
ACTIVATIONS = ("activations", "reserve space", "KV cache")


@dataclass(frozen=True, kw_only=True)
class Row:
    """Settings of a guide as a description and for the command line, and its number for the memory of one GPU."""

    recipe: str
    setting: str
    guide: str
    options: str
    target: str = "t4"

    @property
    def command(self) -> str:
        options = " ".join(f"--set {option}" for option in self.options.split())
        return f"shoestring estimate {self.recipe} --on {self.target} {options}"


ROWS = (
    Row(
        recipe="vqa",
        setting="batch 3, fp16, decoder checkpointed, three full forwards",
        guide="11-12 GB",
        options="forwards=guide micro_batch=3 precision=fp16 checkpointing=12",
    ),
    Row(
        recipe="vqa",
        setting="the same, batch 2",
        guide="-",
        options="forwards=guide micro_batch=2 precision=fp16 checkpointing=12",
    ),
    Row(
        recipe="vqa",
        setting="batch 3, image and question encoded once",
        guide="-",
        options="forwards=shared micro_batch=3 precision=fp16 checkpointing=12",
    ),
    Row(
        recipe="legal",
        setting="batch 16, fp32, padded to 512",
        guide="14 GB",
        options="micro_batch=16 precision=fp32",
    ),
    Row(
        recipe="legal",
        setting="batch 8, fp16, padded to 512",
        guide="7 GB",
        options="micro_batch=8 precision=fp16",
    ),
    Row(
        recipe="legal",
        setting="batch 4, fp16, padded to 512",
        guide="4 GB",
        options="micro_batch=4 precision=fp16",
    ),
    Row(
        recipe="legal",
        setting="batch 16, fp32, 128 tokens at most",
        guide="-",
        options="micro_batch=16 precision=fp32 seq_len=128",
    ),
    Row(
        recipe="temporal",
        setting="LSTM, batch 256, fp16",
        guide="8 GB",
        options="architecture=lstm micro_batch=256 precision=fp16",
    ),
    Row(
        recipe="temporal",
        setting="Transformer, batch 256, fp16",
        guide="8 GB",
        options="architecture=transformer micro_batch=256 precision=fp16",
    ),
    Row(
        recipe="temporal",
        setting="MLP, batch 512, fp16",
        guide="8 GB",
        options="architecture=mlp micro_batch=512 precision=fp16",
    ),
    Row(
        recipe="cloud",
        setting="batch 4 on two GPUs, 2 on each, fp32",
        guide="6 GB",
        options="micro_batch=2 precision=fp32",
    ),
    Row(
        recipe="cloud",
        setting="batch 4 on one GPU, fp32",
        guide="-",
        options="micro_batch=4 precision=fp32",
    ),
    Row(
        recipe="chart",
        setting="two GPUs, 1 completion at a time on each, 4 in an update, ZeRO-3, fp16, checkpointed",
        guide="-",
        options="generations=2 effective_batch=4 micro_batch=1 precision=fp16 checkpointing=full sharding=zero3",
        target="kaggle-t4x2",
    ),
    Row(
        recipe="chart",
        setting="the same on one GPU without ZeRO",
        guide="-",
        options="generations=2 effective_batch=4 micro_batch=1 precision=fp16 checkpointing=full",
    ),
    Row(
        recipe="chart",
        setting="one GPU, not checkpointed",
        guide="-",
        options="generations=2 effective_batch=4 micro_batch=1 precision=fp16 checkpointing=no",
    ),
)


def main(recipes: Iterable[str]) -> None:
    rows = [row for row in ROWS if not recipes or row.recipe in recipes]
    print(table((row, run_estimate(row)) for row in rows))
    print("\n```", *(row.command for row in rows), "```", sep="\n")


def run_estimate(row: Row) -> dict[str, Any]:
    """Run the command of a row and return its result. Raises CalledProcessError if it fails; errors go to stderr."""
    command = [sys.executable, "-m", *row.command.split(), "--json"]
    answer: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return answer


def table(answers: Iterable[tuple[Row, Mapping[str, Any]]]) -> str:
    """Format a Markdown table; GB are 10^9 bytes, on one GPU."""
    lines = [
        "| recipe | setting | guide | estimate | range | states | activations | rest | fits a T4 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row, answer in answers:
        parts = {part["name"]: part["bytes"] for part in answer["parts"]}
        states, activations = (sum(parts.get(name, 0) for name in group) for group in (STATES, ACTIVATIONS))
        cells = [
            row.recipe,
            row.setting,
            row.guide,
            f"{gigabytes(answer['peak_bytes'])} GB",
            f"{gigabytes(answer['low_bytes'])}-{gigabytes(answer['high_bytes'])}",
            *map(gigabytes, (states, activations, answer["peak_bytes"] - states - activations)),
            "yes" if answer["fits"] else "no",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f}"


if __name__ == "__main__":
    main(sys.argv[1:])
