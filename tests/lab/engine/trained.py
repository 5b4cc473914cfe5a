"""What a run has trained: the tensors of its newest checkpoint, its losses and its other results."""

import json
from dataclasses import dataclass, field
from unittest import mock

import torch
from safetensors.torch import load_file

from shoestring.training.meter import Meter
from tests.sessions import CPU, session

CUDA = torch.device("cuda")


@dataclass(kw_only=True)
class Trained:
    tensors: dict[str, torch.Tensor]
    """Weights, optimizer states and averages of the newest checkpoint, by section and name."""
    state: dict
    """The other values of the checkpoint: the scaler's, the progress, the environment."""
    events: list[dict]
    evaluations: list[float]
    """The validation losses."""
    updates: list[dict] = field(default_factory=list)
    """The loss, the norm of the gradient and the skipped steps of each update of the last session."""

    @property
    def losses(self):
        return [update["loss"] for update in self.updates] + self.evaluations

    def of_kind(self, kind):
        return [event for event in self.events if event["event"] == kind]


def read(run):
    """Return what the run in the folder `run` has trained."""
    newest = max((run / "checkpoints").glob("update-*"))
    files = newest.glob("*.safetensors")
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return Trained(
        tensors={f"{file.stem}.{name}": tensor for file in files for name, tensor in load_file(file).items()},
        state=json.loads((newest / "state.json").read_text()),
        events=events,
        evaluations=[event["metrics"]["loss"] for event in events if event["event"] == "evaluation"],
    )


def train(run, recipe, values, *, device=CUDA, status="finished", **options):
    """Train in the folder `run` until the session ends in this `status`, and return the result."""
    updates, add = [], Meter.add

    def record(meter, result, **facts):
        norm = None if result.gradient_norm is None else float(result.gradient_norm)
        updates.append({"loss": float(result.loss), "norm": norm, "skipped": result.skipped})
        add(meter, result, **facts)

    with mock.patch.object(Meter, "add", record):
        outcome = session(recipe, run, {"micro_batch": 4, **values}, device=device, **options)
    assert outcome.status == status
    trained = read(run)
    trained.updates = updates
    return trained


def on_both(folder, recipe, values):
    """Train on the simulated GPU and on the CPU, and return both results."""
    return train(folder / "cuda", recipe, values), train(folder / "cpu", recipe, values, device=CPU)


def largest_difference(a, b):
    """Return the largest absolute difference of a floating-point tensor of two results; other tensors are equal."""
    assert a.tensors.keys() == b.tensors.keys() and a.tensors
    differences = [0.0]
    for name, tensor in a.tensors.items():
        assert tensor.dtype == b.tensors[name].dtype and tensor.shape == b.tensors[name].shape, name
        if tensor.is_floating_point():
            differences.append(float((tensor.double() - b.tensors[name].double()).abs().max()))
        else:
            assert torch.equal(tensor, b.tensors[name]), name
    return max(differences)


def assert_same_bits(a, b, *, state=True):
    """Assert that two results have the same tensors and evaluations, and with `state` the same other values."""
    assert a.tensors.keys() == b.tensors.keys() and a.tensors
    different = [name for name, tensor in a.tensors.items() if not torch.equal(tensor, b.tensors[name])]
    assert not different
    assert a.evaluations == b.evaluations
    assert not state or a.state == b.state
