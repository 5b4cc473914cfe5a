"""The values of the commands, of which those of one recipe share their traces."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.catalogue import ROOT
from benchmarks.claims.cases import Case

from shoestring.base import config
from shoestring.base.settings import Settings
from shoestring.hardware.targets import find
from shoestring.planning.estimation import Estimate, make_estimate
from shoestring.planning.plan import Plan
from shoestring.planning.planner import plan_with
from shoestring.planning.trace import Facts, StoredTraces, Trace, Tracer
from shoestring.planning.weight_type import with_weight_type
from shoestring.recipe.options import LoadedRecipe

Values = dict[str, dict[str, Any]]
"""Of a command: by unit (`bytes`, `seconds`, `count`, `text`) and name."""
_LARGE = ("vqa", "chart")
"""The recipes whose commands take longest, which therefore begin first."""
_MEASURED = ("rewards", "prompts", "starting")
"""Parts of the time that may be measured on the machine that plans; they are in the sums, of which they are a small
part."""


class TracesOfAnyRows(StoredTraces):
    """The traces of plans of absent data that may differ in the number of rows, which no trace depends on."""

    def get(self, facts: Facts, request: dict[str, Any]) -> Trace | None:
        return super().get(_without_rows(facts), request)

    def add(self, facts: Facts, request: dict[str, Any], trace: Trace) -> None:
        super().add(_without_rows(facts), request, trace)


def _without_rows(facts: Facts) -> Facts:
    return dataclasses.replace(facts, samples=None, notes=())


def compute(cases: Mapping[str, Case], processes: int = 1) -> dict[str, Values]:
    """Return the values of the commands by their names, computed in so many processes, and print the progress."""
    by_recipe: dict[str, list[Case]] = {}
    for case in cases.values():
        by_recipe.setdefault(case.recipe, []).append(case)
    groups = [by_recipe[recipe] for recipe in sorted(by_recipe, key=lambda recipe: recipe not in _LARGE)]
    if processes == 1:
        results = [_compute(group) for group in groups]
    else:
        with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
            results = list(pool.map(_compute, groups))
    values = {case: value for result in results for case, value in result.items()}
    return {name: values[case] for name, case in cases.items()}


def _compute(cases: Sequence[Case]) -> dict[Case, Values]:
    """Return the values of commands of one recipe."""
    values: dict[Case, Values] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(ROOT):
        for case, plan in _plans([case for case in cases if case.verb == "plan"], Path(folder)):
            values[case] = _plan_values(plan)
        for case in cases:
            if case not in values:
                loaded, settings = case.choose()
                with _progress(case):
                    values[case] = _estimate_values(make_estimate(loaded, find(case.target), settings))
    return values


def _plans(cases: Iterable[Case], folder: Path) -> Iterator[tuple[Case, Plan]]:
    """Yield a plan for each different command; those of one recipe with the same options share its tracer."""
    groups: dict[str, list[tuple[Case, LoadedRecipe, Settings]]] = {}
    for case in dict.fromkeys(cases):
        loaded, settings = case.choose()
        recipe = with_weight_type(loaded, find(case.target), settings)
        groups.setdefault(_key(recipe), []).append((case, recipe, settings))
    for group in groups.values():
        with Tracer(group[0][1], _traces(group[0][1], folder)) as tracer:
            for case, recipe, settings in group:
                target = find(case.target)
                with _progress(case):
                    plan = plan_with(
                        tracer, recipe, target, settings, thorough=False, usd_per_hour=None, calibration=None
                    )
                yield case, plan


def _key(recipe: LoadedRecipe) -> str:
    return json.dumps([recipe.name, config.as_json(recipe.options)], sort_keys=True)


def _traces(recipe: LoadedRecipe, folder: Path) -> TracesOfAnyRows:
    return TracesOfAnyRows(folder / f"{recipe.name}.jsonl", recipe.replace(rows=None))


@contextlib.contextmanager
def _progress(case: Case) -> Iterator[None]:
    start = time.monotonic()
    yield
    print(f"{time.monotonic() - start:.1f} s: {case.command}", file=sys.stderr, flush=True)


def _plan_values(plan: Plan) -> Values:
    answer = plan.json()
    timed, job, disk, settings = answer["time"], answer["job"], answer["disk"], answer["settings"]
    seconds = {
        "update": timed["update_seconds"],
        "update_low": timed["low_update_seconds"],
        "update_high": timed["high_update_seconds"],
        "epoch": timed["epoch_seconds"],
        "epoch_low": timed["low_epoch_seconds"],
        "epoch_high": timed["high_epoch_seconds"],
        "job": job["seconds"],
        "job_low": job["low_seconds"],
        "job_high": job["high_seconds"],
        **_parts("update", timed["parts"]),
        **_parts("job", job["parts"]),
    }
    updates = sum(session["updates"] for session in answer["sessions"])
    return {
        "bytes": {
            **_memory(answer["memory"]),
            "disk": disk["peak_bytes"],
            "checkpoint": disk["full_checkpoint_bytes"],
            "light": disk["light_checkpoint_bytes"],
        },
        "seconds": {name: float(f"{value:.6g}") for name, value in seconds.items() if value is not None},
        "count": {
            "samples": (plan.facts.samples or {}).get("train", 0),
            "updates": updates,
            "updates_per_epoch": round(timed["epoch_seconds"] / timed["update_seconds"]),
            "sessions": len(answer["sessions"]),
            "weeks": len(answer["weeks"]),
            "gpus": settings["gpus"],
            "micro_batch": settings["micro_batch"],
        },
        "text": {
            "verdict": plan.verdict if plan.fits else f"{plan.verdict}: {plan.binding.name}",
            **{name: settings[name] for name in ("precision", "checkpointing", "sharding")},
        },
    }


def _estimate_values(estimate: Estimate) -> Values:
    answer = estimate.json()
    parts = {_identifier(part["name"]): part["bytes"] for part in answer["parts"]}
    phases = {f"in_{name}": size for name, size in estimate.phases.items()}
    return {
        "bytes": {**_memory(answer), **parts, **phases},
        "text": {"fits": "yes" if answer["fits"] else "no"},
    }


def _memory(answer: Mapping[str, Any]) -> dict[str, int]:
    return {"memory": answer["peak_bytes"], "memory_low": answer["low_bytes"], "memory_high": answer["high_bytes"]}


def _parts(whole: str, parts: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    return {f"{whole}_{_identifier(part['name'])}": part["seconds"] for part in parts if part["name"] not in _MEASURED}


def _identifier(name: str) -> str:
    return name.replace(" ", "_")
