"""A trace in which most time steps of a scan do not run is exactly the trace in which all run."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from shoestring.base.settings import Settings
from shoestring.planning.trace import child, time_steps
from shoestring.recipe import finding
from tests.planning.trace.test_folding import canonical

STEPS, WIDTH = 24, 8


def collects_outputs(rates: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
    """A scan as in transformers' Mamba: a list of outputs."""
    state = torch.zeros_like(inputs[:, 0])
    outputs = []
    for index in range(inputs.shape[1]):
        state = rates[:, index] * state + inputs[:, index]
        output = state @ weight
        outputs.append(output[:, :4])
    return torch.stack(outputs, dim=1)


def writes_outputs(rates: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
    """A scan as in transformers' RWKV: outputs that are written to one tensor."""
    output = torch.zeros_like(inputs)
    state = torch.zeros_like(inputs[:, 0])
    largest = torch.zeros_like(inputs[:, 0]) - 1e38
    for index in range(inputs.shape[1]):
        largest_here = torch.maximum(largest, inputs[:, index] + weight[0])
        decay = torch.exp(largest - largest_here)
        output[:, index] = (decay * state + inputs[:, index]).to(output.dtype)
        state = decay * state + rates[:, index]
        largest = largest_here
    return output[..., :4]


def grows(rates: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
    """A scan that cannot be folded: its states grow."""
    states = [inputs[:, :1]]
    for index in range(inputs.shape[1]):
        states.append(torch.cat((states[-1] * rates[:, index : index + 1], inputs[:, index : index + 1]), 1))
    return (states[-1].mean(1, keepdim=True) @ weight)[..., :4]


class Layer(nn.Module):
    def __init__(self, scan: Callable[..., Tensor]) -> None:
        super().__init__()
        self.rates, self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(4, WIDTH)
        self.weight = nn.Parameter(torch.zeros(WIDTH, WIDTH))
        self.scan = scan

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = hidden + self.outer(self.scan(self.rates(hidden).exp(), self.inner(hidden), self.weight))
        return result


class Recurrence:
    def __init__(self, scan: Callable[..., Tensor], layers: int) -> None:
        self._scan, self._layers = scan, layers

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sequential(*(Layer(self._scan) for _ in range(self._layers))))

    def batch(self, size: int) -> Tensor:
        return torch.zeros(size, STEPS, WIDTH)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).float().square().mean()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)


def compare(scan: Callable[..., Tensor], layers: int, **settings: Any) -> tuple[int, str]:
    """Return the number of folded time steps, and a description of the first event that folding has changed."""
    from shoestring.planning.trace import simulated_place, update
    from shoestring.planning.trace.folding import Folding
    from shoestring.planning.trace.recorder import Recorder

    counts = []

    class Counted(Folding):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            counts.append(self)

    simulated_place.Folding = Counted  # type: ignore[misc]
    records = []
    for folds in (True, False):
        record = update.run(
            Recorder(),
            finding.find(Recurrence(scan, layers)),
            Settings(**{"micro_batch": 2, "precision": "fp32", "checkpointing": "no", **settings}),
            accumulate=1,
            capability=(7, 5),
            folds=folds,
        )
        records.append(canonical(record.storages, record.events))
    folded, whole = records
    count = counts[0].scans.count if counts[0].scans else 0
    if folded == whole:
        return count, "equal"
    pairs = enumerate(zip(folded, whole, strict=False))
    index = next((index for index, (a, b) in pairs if a != b), min(len(folded), len(whole)))
    return count, f"event {index} of {len(whole)}: {folded[index : index + 3]} != {whole[index : index + 3]}"


CASES: dict[str, tuple[Callable[..., Tensor], int, dict[str, Any]]] = {
    "outputs in a list, in identical blocks": (collects_outputs, 4, {"precision": "fp16"}),
    "outputs in one tensor": (writes_outputs, 1, {}),
    "outputs in one tensor, with casts": (writes_outputs, 1, {"precision": "fp16"}),
    "states that grow": (grows, 1, {}),
    "recomputed": (collects_outputs, 2, {"checkpointing": "full"}),
}


def compare_all() -> dict[str, Any]:
    """Return what `compare` returns, or an exception, for each case."""
    torch.set_num_threads(1)
    child._open(finding.find(Recurrence(collects_outputs, 1)))
    time_steps.MODULES = (__name__,)
    answers: dict[str, Any] = {}
    for name, (scan, layers, settings) in CASES.items():
        try:
            answers[name] = compare(scan, layers, **settings)
        except Exception as error:  # noqa: BLE001 - reported by the test
            answers[name] = repr(error)
    return answers


def test_a_folded_scan_has_exactly_the_events_of_all_steps() -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:  # the simulated device cannot be removed from a process
        answers = pool.apply(compare_all)
    updates, steps = 2, STEPS - time_steps._FIRST - time_steps._LAST
    assert answers == {
        "outputs in a list, in identical blocks": (updates * 3 * steps, "equal"),
        "outputs in one tensor": (updates * steps, "equal"),
        "outputs in one tensor, with casts": (updates * steps, "equal"),
        "states that grow": (0, "equal"),
        "recomputed": (0, "equal"),
    }
