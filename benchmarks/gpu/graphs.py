"""Compare the gradients and the time of updates as CUDA graphs with those without (`compile=graphs`).

    python -m benchmarks.gpu.graphs [--json OUT] [--dry-run]

Each update has four microbatches, so two graphs share a memory pool. The exit status is 2 without a GPU, and 1 if
gradients differ. `--dry-run` runs without graphs on the CPU.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from benchmarks.gpu import harness
from torch import Tensor, nn

from shoestring.training.engine.cuda_graphs import CudaGraphs
from shoestring.training.engine.determinism import deterministic
from shoestring.training.engine.precision import mixed_precision
from shoestring.training.engine.update import add_gradients

UPDATES, MICROBATCHES, SAMPLES = 20, 4, 8
MEASURED_FROM = 5
"""Updates before the measurement: graphs are captured in the second and third one."""


class Recurrent(nn.Module):
    """An LSTM, whose cuDNN kernels have a reserve space."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 1)

    def forward(self, values: Tensor) -> Tensor:
        output: Tensor = self.head(self.layer(values)[0][:, -1])
        return output


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear layers": (lambda: nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)), (SAMPLES, 16)),
    "transformer": (
        lambda: nn.Sequential(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True), nn.Linear(16, 1)),
        (SAMPLES, 5, 16),
    ),
    "LSTM": (Recurrent, (SAMPLES, 5, 16)),
    "convolution and BatchNorm": (
        lambda: nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.LazyLinear(1)),
        (SAMPLES, 3, 8, 8),
    ),
}
"""The network and the shape of a microbatch."""


def measure(name: str, precision: str, device: torch.device) -> dict[str, Any]:
    """Return the largest difference of a gradient over all updates, and the median seconds of each way."""
    build, shape = NETWORKS[name]
    torch.manual_seed(0)
    network = build().to(device)
    network(torch.zeros(shape, device=device))  # a lazy layer gets its shape
    twin = copy.deepcopy(network)
    ways: list[tuple[nn.Module, Any]] = [(network, None), (twin, CudaGraphs(twin) if device.type == "cuda" else None)]
    modes = [mixed_precision(precision, device) for _ in ways]  # type: ignore[arg-type]
    difference, seconds = 0.0, ([], [])  # type: tuple[list[float], list[float]]
    for number in range(UPDATES):
        inputs = [torch.randn(shape, device=device) for _ in range(MICROBATCHES)]
        gradients = []
        for (model, run), mode, durations in zip(ways, modes, seconds, strict=True):
            torch.manual_seed(number)
            start = time.perf_counter()
            add_gradients(
                model,
                lambda model, batch: model(batch).square().mean(),
                ((values, SAMPLES) for values in inputs),
                samples=MICROBATCHES * SAMPLES,
                mixed_precision=mode,
                run=run,
            )
            if device.type == "cuda":
                torch.cuda.synchronize()
            durations.append(time.perf_counter() - start)
            gradients.append([parameter.grad for parameter in model.parameters()])
            for parameter in model.parameters():
                parameter.grad = None
        for plain, graphed in zip(*gradients, strict=True):
            largest = float((plain - graphed).abs().max())
            difference = max(difference, largest) if largest == largest else float("inf")
    plain_seconds, graph_seconds = (median(durations[MEASURED_FROM:]) for durations in seconds)
    return {
        "name": name,
        "precision": precision,
        "max_gradient_difference": difference,
        "seconds": plain_seconds,
        "graph_seconds": graph_seconds,
    }


def main() -> int:
    arguments = harness.build_parser(__doc__, file="gpu_graphs.json", seconds=60).parse_args()
    selection = harness.select_cases(dry_run=arguments.dry_run)
    if selection is None:
        return 2
    _, gpu, kind = selection
    rows = []
    with deterministic():
        for name in NETWORKS:
            for precision in ("fp32",) if arguments.dry_run else ("fp32", "fp16"):
                rows.append(measure(name, precision, torch.device(kind)))
                row = rows[-1]
                verdict = "equal" if row["max_gradient_difference"] == 0 else "DIFFERENT"
                print(
                    f"{name:26} {precision}  {verdict}: gradients differ by at most "
                    f"{row['max_gradient_difference']:.3g}; {row['seconds'] * 1e3:.2f} ms an update, as graphs "
                    f"{row['graph_seconds'] * 1e3:.2f} ms",
                    flush=True,
                )
                harness.write_results(arguments.json, gpu, {"rows": rows})
    return 0 if all(row["max_gradient_difference"] == 0 for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
