"""Plan one command many times on this machine under a changing load, and count the different settings.

    python -m benchmarks.plan.same_settings [--plans 20] [--seed 0] [--json OUT] [RECIPE ...]

Processes that compute without end start and stop at random moments, one for each core at most. Each recipe is planned
half of the times with the cached rates of the CPU deleted before each plan, and then with the cache. A plan starts as a
new process would: its recipe is traced again, and the rates are measured or read again. Five recipes take twelve
minutes.
"""

import argparse
import json
import os
import platform
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.sessions.limits import busy_process

from shoestring.hardware import probe, targets
from shoestring.planning.planner import make_plan
from shoestring.recipe.finding import choose

RECIPES = ("temporal", "legal", "cloud", "vqa", "finetune")


@contextmanager
def changing_load(seed: int, cores: int) -> Iterator[list[int]]:
    """Keep the machine busy within the context, with a number of processes that changes; yields these numbers."""
    generator, is_over, counts = random.Random(seed), threading.Event(), list[int]()

    def change() -> None:
        while not is_over.is_set():
            counts.append(generator.randint(0, cores))
            with ExitStack() as processes:
                for _ in range(counts[-1]):
                    processes.enter_context(busy_process())
                is_over.wait(generator.uniform(0.1, 2.0))

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield counts
    finally:
        is_over.set()
        thread.join()


def plans(recipe: str, count: int, *, folder: Path, keeps_cache: bool) -> dict[str, Any]:
    """Plan a recipe so many times, and return its different settings and the range of what was measured."""
    loaded, requested = choose(recipe, {"size": "tiny"})
    settings: list[dict[str, Any]] = []
    seconds, flops = [], []
    for _ in range(count):
        if not keeps_cache:
            for file in folder.glob("shoestring/cpu_rates/*.json"):
                file.unlink()
        for function in (probe.local, probe.local_cpu):
            function.cache_clear()
        target = targets.find("local")
        plan = make_plan(loaded, target, requested)
        if plan.settings.json() not in settings:
            settings.append(plan.settings.json())
        seconds.append(plan.time.predicted.update_seconds)
        flops.append(target.device.fp32_flops)
    return {
        "recipe": recipe,
        "cache": keeps_cache,
        "plans": count,
        "different_settings": len(settings),
        "settings": settings[0],
        "update_seconds": [min(seconds), max(seconds)],
        "fp32_flops": [min(flops), max(flops)],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=RECIPES)
    parser.add_argument("--plans", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    if probe.gpus():
        raise SystemExit("this machine has a GPU, whose rates are not measured")
    rows = []
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, changing_load(options.seed, probe.cores()) as counts:
        os.environ["XDG_CACHE_HOME"] = folder
        for recipe in options.recipes:
            for keeps_cache in (False, True):
                rows.append(plans(recipe, options.plans // 2, folder=Path(folder), keeps_cache=keeps_cache))
                print(json.dumps(rows[-1]), flush=True)
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.platform(),
        "cpu": probe.cpu_model(),
        "cores": probe.cores(),
        "seconds": round(time.monotonic() - started),
        "loads": len(counts),
        "rows": rows,
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(row["different_settings"] == 1 for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
