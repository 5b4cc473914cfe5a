"""How long OpenMP's threads should spin while they wait for each other, on an idle machine and on a busy one.

    python -m benchmarks.engine.spinning [--rounds 3] [--seconds 6] [--json OUT] [MODEL ...]

torch computes on a CPU with the threads of GNU's OpenMP, which wait for each other after each operator. Before a thread
sleeps it spins, as often as `GOMP_SPINCOUNT` says. A contender is a process that makes updates of a model with as many
threads as the machine has processors. The busy machine has as many other processes that compute all the time. Rounds
have all contenders, one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from shoestring.hardware import probe

SPINS = ("default", "0", "1000", "10000", "100000")
MODELS = (
    "LSTM, 256 sequences of 60",
    "transformer, 8 x 64 tokens",
    "convolutions, 8 images of 64 x 64",
    "transformer of width 64, 16 x 40 tokens",
)
_BUSY = "while True: pass"


def contend(model: str, seconds: float) -> None:
    """Print the seconds of each update that is made in so many seconds, after the first."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    net, inputs = {
        MODELS[0]: lambda: (nn.LSTM(64, 128, num_layers=2, batch_first=True), torch.randn(256, 60, 64)),
        MODELS[1]: lambda: (
            nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True), 4),
            torch.randn(8, 64, 256),
        ),
        MODELS[2]: lambda: (
            nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3)),
            torch.randn(8, 3, 64, 64),
        ),
        MODELS[3]: lambda: (
            nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 256, batch_first=True), 2),
            torch.randn(16, 40, 64),
        ),
    }[model]()
    optimizer = torch.optim.AdamW(net.parameters())
    durations: list[float] = []
    end = time.monotonic() + seconds
    while len(durations) < 2 or time.monotonic() < end:
        started = time.monotonic()
        output = net(inputs)
        (output[0] if isinstance(output, tuple) else output).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        durations.append(time.monotonic() - started)
    print(json.dumps(durations[1:]))


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Let so many other processes compute within the context."""
    others = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def measure(model: str, spins: str, seconds: float) -> float:
    """Return the median seconds of an update in a new process."""
    own = {} if spins == "default" else {"GOMP_SPINCOUNT": spins}
    environment = {
        name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    }
    command = [sys.executable, "-m", "benchmarks.engine.spinning", "--contend", model, "--seconds", str(seconds)]
    answer = subprocess.run(command, env={**environment, **own}, stdout=subprocess.PIPE, check=True).stdout
    return median(json.loads(answer))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help="by default all: " + "; ".join(MODELS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="of a contender")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--contend", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.contend:
        contend(options.contend, options.seconds)
        return 0
    rows: list[dict[str, Any]] = []
    for model in options.models or MODELS:
        for others in (0, os.cpu_count() or 1):
            with busy(others):
                rounds = [
                    {spins: measure(model, spins, options.seconds) for spins in SPINS} for _ in range(options.rounds)
                ]
            row = {spins: [values[spins] for values in rounds] for spins in SPINS}
            rows.append({"model": model, "other_processes": others, "update_seconds": row})
            medians = "  ".join(f"{spins} {median(values) * 1e3:.1f} ms" for spins, values in row.items())
            print(f"{model}, {others} other processes: {medians}", flush=True)
    if options.json:
        content = {"date": time.strftime("%Y-%m-%d"), "environment": probe.machine(), "rows": rows}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
