"""What glibc's allocator costs updates on a CPU, and what it would cost to keep freed memory instead.

    python -m benchmarks.engine.malloc [--sets 2] [--rounds 6] [--seconds 0.3] [--json OUT] [MODEL ...]

By default glibc returns large freed blocks to the system, and each time that they are allocated again, the kernel
provides and clears their pages. `POLICIES` has the settings of `mallopt` that are compared; training uses the second
(`training/engine/malloc.py`). Each contender is a process that makes real updates of the engine with the data of its
recipe, in one thread. Those of one model run blocks of updates in turn, one at a time, a different one first in each
round; a ratio is the median of the ratios of single rounds. A set has new processes. Memory is the peak of the resident
process over all its updates, less what it had before the model.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu.cases import CONFIGURATIONS

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
"""From malloc.h."""
_LARGE = 2**31 - 1
DEFAULT = "default"
POLICIES: dict[str, dict[int, int]] = {
    DEFAULT: {},
    # 32 MiB is the largest threshold that glibc accepts.
    "blocks below 32 MiB are kept": {M_MMAP_THRESHOLD: 2**25, M_TRIM_THRESHOLD: _LARGE},
    "all blocks are kept": {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: _LARGE},
}
MODELS: dict[str, tuple[str, dict[str, Any], int]] = {
    **{
        f"{name} size=tiny": (name, {"size": "tiny"}, size)
        for name, size in (("temporal", 256), ("legal", 16), ("cloud", 4), ("vqa", 16), ("finetune", 8))
    },
    "ResNet-18, 16 images of 128 x 128": ("resnet-18", {"image_size": 128, "effective_batch": 16}, 16),
    "GPT-2, 6 layers of width 384, 4 x 256 tokens": ("gpt2-small", {"seq_len": 256, "effective_batch": 4}, 4),
}
"""Reference, options and microbatch."""
_WARM_UP = 3


def contend(question: dict[str, Any]) -> None:
    """Make updates as the lines of standard input ask; answer with their seconds, faults, memory and bits."""
    import torch

    from shoestring.base.settings import Settings
    from shoestring.recipe.finding import load
    from shoestring.recipe.losses import losses_by_stage
    from shoestring.runs.check.attempts import make_update
    from shoestring.runs.check.memory import read_status
    from shoestring.training.data.loading import Loader
    from shoestring.training.data.order import DataOrder
    from shoestring.training.engine.building import build
    from shoestring.training.engine.determinism import deterministic

    # As early as a training process could do it: after its imports.
    if question["policy"]:
        libc = ctypes.CDLL(None)
        assert all(libc.mallopt(int(name), value) for name, value in question["policy"].items())
    device = torch.device("cpu")
    with tempfile.TemporaryDirectory() as folder, deterministic():
        reference = question["reference"]
        if reference in CONFIGURATIONS:
            file = Path(folder) / f"{reference}.json"
            file.write_text(json.dumps(CONFIGURATIONS[reference]))
            reference = f"hf:{file}"
        loaded = load(reference, question["options"])
        size = question["micro_batch"]
        layer = torch.nn.Linear(64, 64)  # the libraries allocate what they need once
        layer(torch.ones(8, 64)).sum().backward()
        torch.optim.AdamW(layer.parameters()).step()
        before = read_status("VmRSS")
        state = build(loaded, Settings(micro_batch=size, precision="fp32"), device)
        losses = losses_by_stage(loaded.recipe)
        loader, updates_per_epoch = None, 1
        if loaded.parts.data.data is not None and not loaded.parts.data.has_placeholder_data:
            data = loaded.data()["train"]
            order = DataOrder.of(data, effective_batch=loaded.effective_batch, seed=loaded.seed)
            loader, updates_per_epoch = (
                Loader(loaded.recipe, data, order, seed=0, device=device, workers=0),
                order.updates_per_epoch,
            )
        number = 0
        for line in sys.stdin:
            usage, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
            for _ in range(int(line)):
                if loader:
                    batches = [*loader.microbatches(number % updates_per_epoch, size)]
                else:
                    batches = [(loaded.recipe.batch(size), size)]
                samples = sum(count for _, count in batches)
                make_update(loaded, state, losses[number % len(losses)], batches, samples, number)
                number += 1
            seconds, used = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
            digest = hashlib.sha256()
            for name, value in state.model.state_dict().items():
                digest.update(name.encode() + value.detach().numpy().tobytes())
            answer = {
                "seconds": seconds / int(line),
                "system_seconds": (used.ru_stime - usage.ru_stime) / int(line),
                "cpu_seconds": (used.ru_utime + used.ru_stime - usage.ru_utime - usage.ru_stime) / int(line),
                "faults": (used.ru_minflt - usage.ru_minflt) / int(line),
                "peak_bytes": read_status("VmHWM") - before,
                "resident_bytes": read_status("VmRSS") - before,
                "bits": digest.hexdigest(),
            }
            print(json.dumps(answer), flush=True)


class Contender:
    """A process that makes updates of a model with a policy."""

    def __init__(self, model: str, policy: str) -> None:
        reference, options, micro_batch = MODELS[model]
        question = {"reference": reference, "options": options, "micro_batch": micro_batch, "policy": POLICIES[policy]}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        environment["OMP_NUM_THREADS"] = "1"  # several threads wait for each other on a machine that others use
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.engine.malloc", "--contend", json.dumps(question)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    def run_block(self, updates: int) -> dict[str, Any]:
        assert self._process.stdin and self._process.stdout
        print(updates, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a contender ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        self._process.communicate()


@dataclass(frozen=True, kw_only=True)
class Row:
    """A policy for a model."""

    policy: str
    update_seconds: float
    ratio: float
    """The median of the ratios of single rounds to the default policy."""
    ratios_of_sets: list[float]
    cpu_ratio: float
    """The same for the processor's seconds, which other processes disturb less."""
    system_share: float
    """The kernel's share of the processor's seconds."""
    faults: float
    """Page faults of an update."""
    peak_bytes: int
    resident_bytes: int
    """The median over the sets, after the last update."""
    bits: str


def compare(model: str, *, sets: int, rounds: int, seconds: float) -> list[Row]:
    """Run the policies in turn, and return their rows, the default first."""
    policies = [*POLICIES]
    answers: dict[str, list[list[dict[str, Any]]]] = {policy: [] for policy in policies}
    updates = 0
    for _ in range(sets):
        contenders = {policy: Contender(model, policy) for policy in policies}
        for contender in contenders.values():
            warm = contender.run_block(_WARM_UP)
            updates = updates or max(1, round(seconds / warm["seconds"]))
            contender.run_block(_WARM_UP)
        blocks: dict[str, list[dict[str, Any]]] = {policy: [] for policy in policies}
        for number in range(rounds):
            shift = number % len(policies)
            for policy in policies[shift:] + policies[:shift]:
                blocks[policy].append(contenders[policy].run_block(updates))
        for policy, contender in contenders.items():
            contender.end()
            answers[policy].append(blocks[policy])
    return [_row(policy, answers[policy], answers[DEFAULT]) for policy in policies]


def _row(policy: str, sets: list[list[dict[str, Any]]], default: list[list[dict[str, Any]]]) -> Row:
    ratios, cpu_ratios = (
        [
            [block[name] / other[name] for block, other in zip(blocks, others, strict=True)]
            for blocks, others in zip(sets, default, strict=True)
        ]
        for name in ("seconds", "cpu_seconds")
    )
    blocks = [block for blocks in sets for block in blocks]
    return Row(
        policy=policy,
        update_seconds=median(block["seconds"] for block in blocks),
        ratio=median(ratio for of_set in ratios for ratio in of_set),
        ratios_of_sets=[median(of_set) for of_set in ratios],
        cpu_ratio=median(ratio for of_set in cpu_ratios for ratio in of_set),
        system_share=median(block["system_seconds"] / block["cpu_seconds"] for block in blocks),
        faults=median(block["faults"] for block in blocks),
        peak_bytes=round(median(blocks[-1]["peak_bytes"] for blocks in sets)),
        resident_bytes=round(median(blocks[-1]["resident_bytes"] for blocks in sets)),
        bits=blocks[-1]["bits"],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--sets", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=0.3, help="of a block of updates")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--contend", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.contend:
        contend(json.loads(options.contend))
        return 0
    rows = {}
    for model in options.models or MODELS:
        rows[model] = compare(model, sets=options.sets, rounds=options.rounds, seconds=options.seconds)
        for row in rows[model]:
            print(
                f"{model:<46}{row.policy:<30}{row.update_seconds * 1e3:>9.1f} ms{row.ratio:>7.3f}"
                f"{row.cpu_ratio:>7.3f} cpu{row.system_share:>6.1%} system"
                f"{row.faults:>9.0f} faults{row.peak_bytes / 2**20:>8.0f} MiB{row.resident_bytes / 2**20:>8.0f} MiB"
                f"  {', '.join(f'{ratio:.3f}' for ratio in row.ratios_of_sets)}",
                flush=True,
            )
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "libc": " ".join(platform.libc_ver()),
        "rows": {model: [vars(row) for row in of_model] for model, of_model in rows.items()},
        "equal_bits": all(len({row.bits for row in of_model}) == 1 for of_model in rows.values()),
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if result["equal_bits"] else 1


if __name__ == "__main__":
    sys.exit(main())
