"""The host's time for an operator: in a forward pass, in a backward pass, in an optimizer's step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from shoestring.planning.trace.record import Op
from shoestring.planning.trace.recorder import Recorder
from shoestring.runs.check.rates.clock import sample, wait
from shoestring.training.engine.cuda_graphs import cuda_capture

_BLOCKS, _WIDTH = 8, 8
_GRAPH_KERNELS = 200


class _Network(nn.Module):
    """Layers so narrow that their kernels take no time: the host's work for each operator is what remains."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, _WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(_WIDTH, _WIDTH)
            )
            for _ in range(_BLOCKS)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x.square().mean()


class HostClock:
    """Measures the host's seconds for operators; a sample is one of each of its `names`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._model = _Network().to(device)
        self._values = torch.randn(4, _WIDTH, device=device)
        # The kernels of a for-loop over the parameters, as on a CPU; a GPU's engine has fewer and larger ones.
        self._optimizer = torch.optim.AdamW(self._model.parameters(), foreach=False)
        self._graph = _KernelGraph(device) if device.type == "cuda" else None
        self.sample(1)  # creates the optimizer's states
        self._counts = self._count()

    def sample(self, repeats: int) -> dict[str, float]:
        """Return the seconds of one operator by the names of `HOST`, over so many updates."""
        view = sample(lambda: self._values.view(-1), 50 * repeats, self._device)
        samples = {"view": view, "call": sample(lambda: self._values.add(self._values), 50 * repeats, self._device)}
        updates = [self._update() for _ in range(repeats)]
        counts: Mapping[str, tuple[int, int]] = getattr(self, "_counts", {})
        for name, (operators, calls) in counts.items():
            samples[name] = max(
                1e-9, (median(update[name] for update in updates) - (calls - operators) * view) / operators
            )
        if self._graph:
            samples["kernel"] = sample(self._graph.replay, repeats, self._device) / _GRAPH_KERNELS
        return samples

    def _update(self, recorders: Mapping[str, Recorder] | None = None) -> dict[str, float]:
        """Make an update and return the seconds until the host has queued each part of it."""
        seconds = {}
        loss: Any = None

        def forward() -> None:
            nonlocal loss
            loss = self._model(self._values)

        parts: dict[str, Callable[[], Any]] = {
            "forward": forward,
            "backward": lambda: loss.backward(),
            "optimizer": self._optimizer.step,
        }
        for name, part in parts.items():
            wait(self._device)
            with recorders[name] if recorders else nullcontext():
                start = time.perf_counter()
                part()
                seconds[name] = time.perf_counter() - start
        self._optimizer.zero_grad()
        return seconds

    def _count(self) -> dict[str, tuple[int, int]]:
        """Return the operators with kernels, and all operators, of each part of an update."""
        recorders = {name: Recorder(self._is_here) for name in ("forward", "backward", "optimizer")}
        self._update(recorders)
        counts = {}
        for name, recorder in recorders.items():
            operators = [event for event in recorder.log.record()[1] if isinstance(event, Op)]
            counts[name] = len(operators), sum(operator.calls for operator in operators)
        return counts

    def _is_here(self, tensor: Tensor) -> bool:
        return tensor.device.type == self._device.type


class _KernelGraph:
    """A CUDA graph of small kernels, which run one after the other without the host."""

    def __init__(self, device: torch.device) -> None:
        # The graph writes to this memory by its address, and does not keep it from being given to other tensors.
        self._values = torch.zeros(8, device=device)
        self._values.add_(1.0)
        wait(device)
        _, self._replay = cuda_capture()(self._add)  # which can fail for lack of memory, and be destroyed then

    def replay(self) -> None:
        """Launch the kernels."""
        self._replay()

    def _add(self) -> None:
        for _ in range(_GRAPH_KERNELS):
            self._values.add_(1.0)
