"""Predict and measure the reserved memory of updates whose microbatches differ in length.

    python -m benchmarks.lab.memory.lengths [--data DATA] [--models NAME ...] [--json OUT]

Three models are trained for some updates with microbatches of 20 distributions of lengths, in three orders, on a
simulated GPU, where PyTorch's own allocator decides. The prediction is a replay of the same lengths, from the traces of
two lengths. `DATA` has real texts (`law-ai/text`); without it their lengths are left out.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.lab.memory.configurations import MODELS, Configuration
from benchmarks.lab.memory.predictions import MEMORY_BYTES
from benchmarks.lab.memory.processes import started

from shoestring.base.settings import Settings

RESULTS = Path(__file__).parents[2] / "results"
UPDATES, MICROBATCHES = 8, 8
CASES: dict[str, dict[str, Any]] = {
    "gpt2": {"seq_len": 512},
    "bert-base": {"seq_len": 256},
    "opt-125m": {"seq_len": 1024, "lora_r": 16, "quantization": "nf4", "weights": "fp16"},
}
"""Models with their options: all weights trained, an encoder, and adapters on 4-bit weights."""
ORDERS: dict[str, Callable[[list[int], random.Random], list[int]]] = {
    "random": lambda lengths, draw: draw.sample(lengths, len(lengths)),
    "ascending": lambda lengths, _: sorted(lengths),
    "descending": lambda lengths, _: sorted(lengths, reverse=True),
    "engine's": lambda lengths, draw: _longest_first(draw.sample(lengths, len(lengths))),
}
"""The engine's order has the longest samples of each update first, and plans choose expandable segments for it."""

_SYNTHETIC: dict[str, Callable[[random.Random], float]] = {
    **{
        f"lognormal, sigma {sigma}": (lambda draw, s=sigma: math.exp(draw.gauss(-1.6, s)))
        for sigma in (0.3, 0.6, 1.0, 1.5)
    },
    **{f"exponential, mean {mean}": (lambda draw, m=mean: draw.expovariate(1 / m)) for mean in (0.1, 0.3)},
    **{f"Pareto, alpha {alpha}": (lambda draw, a=alpha: 0.03 * draw.paretovariate(a)) for alpha in (1.0, 1.5, 3.0)},
    "uniform": lambda draw: draw.uniform(0.05, 1),
    "normal, near the largest": lambda draw: draw.gauss(0.85, 0.08),
    "normal, in the middle": lambda draw: draw.gauss(0.5, 0.15),
    "two lengths": lambda draw: draw.choice((0.25, 1.0)),
    "four lengths": lambda draw: draw.choice((0.25, 0.5, 0.75, 1.0)),
    "one long sample in 50": lambda draw: 1.0 if draw.random() < 0.02 else draw.uniform(0.1, 0.2),
    "two modes": lambda draw: draw.gauss(0.2, 0.04) if draw.random() < 0.7 else draw.gauss(0.8, 0.08),
}
"""Lengths as shares of the largest possible one, to which they are cut."""


_MODULES = ("argparse", "asyncio", "collections", "decimal", "email", "http", "json", "logging", "pathlib", "unittest")


def distributions(data: Path | None) -> dict[str, Callable[[random.Random], float]]:
    """Return functions that draw a length, by name."""
    real = {"docstrings of Python's library": _docstrings(), "lines of Python's library": _source_lines()}
    if data:
        texts = [
            path.read_text(encoding="utf-8", errors="replace")
            for path in sorted((data / "law-ai/text").rglob("*"))
            if path.is_file()
        ]
        real["sentences of judgments"] = [
            len(line.split("\t")[0]) / 4 for text in texts for line in text.splitlines() if line
        ]
        real["paragraphs of judgments"] = [
            len(text[start : start + 3000].rsplit(".", 1)[0]) / 4
            for text in texts
            for start in range(0, len(text), 3000)
        ]
    return {
        **{name: (lambda draw, values=values: draw.choice(values) / 1024) for name, values in real.items()},
        **_SYNTHETIC,
    }


def _docstrings() -> list[float]:
    """Return the tokens of the docstrings of Python's standard library, as four characters each."""
    modules = [import_module(name) for name in _MODULES]
    values = [value for module in modules for value in vars(module).values()]
    members = [member for value in values if inspect.isclass(value) for member in vars(value).values()]
    return [
        len(text) / 4
        for value in (*values, *members)
        if isinstance(text := getattr(value, "__doc__", None), str) and text
    ]


def _source_lines() -> list[float]:
    """Return the tokens of the functions of Python's argparse module."""
    return [
        len(inspect.getsource(value)) / 4
        for value in vars(argparse).values()
        if inspect.isfunction(value) or inspect.isclass(value)
    ]


def _longest_first(lengths: Sequence[int]) -> list[int]:
    updates = [lengths[start : start + MICROBATCHES] for start in range(0, len(lengths), MICROBATCHES)]
    return [length for update in updates for length in sorted(update, reverse=True)]


def configurations(
    data: Path | None, models: Sequence[str], orders: Sequence[str]
) -> Iterator[tuple[str, str, Configuration]]:
    """Yield the name of a distribution, the order, and the configuration."""
    for model in models:
        micro_batch, _ = MODELS[model]
        options = CASES[model]
        for name, draw_length in distributions(data).items():
            draw = random.Random(f"{model} {name}")
            shares = [max(draw_length(draw) for _ in range(micro_batch)) for _ in range(UPDATES * MICROBATCHES)]
            longest = min(1.0, max(shares))
            lengths = [max(8, round(min(1.0, share) / longest * options["seq_len"])) for share in shares]
            for order in orders:
                ordered = ORDERS[order](lengths, draw)
                updates = tuple(
                    tuple(ordered[start : start + MICROBATCHES]) for start in range(0, len(ordered), MICROBATCHES)
                )
                allocator: Any = "expandable" if order == "engine's" else "segments"
                settings = Settings(micro_batch=micro_batch, precision="fp16", checkpointing="no", allocator=allocator)
                yield (
                    name,
                    order,
                    Configuration(kind="lengths", model=model, options=options, settings=settings, lengths=updates),
                )


def score(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the errors of the rows' reserved memory, and the share of rows that the high end holds."""
    errors = [abs(row["predicted"]["value"] / row["measured"] - 1) for row in rows]
    return {
        "rows": len(rows),
        "median error": median(errors),
        "90th percentile": quantiles(errors, n=10)[-1] if len(errors) > 1 else errors[0],
        "worst": max(errors),
        "held by the high end": sum(row["predicted"]["high"] >= row["measured"] for row in rows) / len(rows),
        "measured over allocated, median": median(row["measured"] / row["allocated"] for row in rows),
        "measured over allocated, worst": max(row["measured"] / row["allocated"] for row in rows),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--models", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--orders", nargs="+", default=list(ORDERS), choices=list(ORDERS))
    parser.add_argument("--limit", type=int, help="at most so many configurations")
    parser.add_argument("--json", type=Path, default=RESULTS / "lab-lengths.json")
    options = parser.parse_args(arguments)
    rows = []
    with (
        started("measuring", on="kaggle-t4x2", memory_bytes=MEMORY_BYTES) as measuring,
        started("estimating", on="kaggle-t4x2", memory_bytes=MEMORY_BYTES) as estimating,
        ThreadPoolExecutor(2) as threads,
    ):
        for name, order, configuration in [*configurations(options.data, options.models, options.orders)][
            : options.limit
        ]:
            measured, estimated = threads.map(lambda side, item=configuration: side.ask(item), (measuring, estimating))
            if error := measured.get("error") or estimated.get("error"):
                print(f"{configuration.model}, {name}, {order}: {error}", file=sys.stderr)
                continue
            row = {
                "model": configuration.model,
                "distribution": name,
                "order": order,
                "measured": measured["reserved"],
                "allocated": measured["allocated"],
                "predicted": estimated["reserved"],
                "predicted allocated": estimated["allocated"]["value"],
            }
            rows.append(row)
            ratio = row["predicted"]["value"] / row["measured"]
            print(
                f"{configuration.model:14} {name:28} {order:11} {row['measured'] / 2**20:7.0f} MiB x{ratio:.3f}",
                flush=True,
            )
    orders = [order for order in ORDERS if any(row["order"] == order for row in rows)]
    scores = {order: score([row for row in rows if row["order"] == order]) for order in orders}
    scores["all"] = score(rows)
    options.json.write_text(json.dumps({"scores": scores, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(scores, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
