"""After an out-of-memory event a run is bit-identical to one that uses the smaller microbatch from that update on."""

import os
import signal

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from shoestring.training.monitor.events import current, read
from tests.sessions import light_bits, session

EFFECTIVE, MICRO = 32, 8
PIECES = EFFECTIVE // MICRO
PER_EPOCH, EPOCHS = 3, 3
FAILING_UPDATE = 4  # from 0, in the middle of the second epoch
SAVED_UPDATE = 3  # of the checkpoint before it


class Faults:
    """Raises out-of-memory errors in `phase` of update number `update`: `times` in total, from its `first` call on."""

    def __init__(self, phase="", first=1, *, update=FAILING_UPDATE, times=1):
        self.phase, self.failing_calls, self.update = phase, range(first, first + times), update
        self.current_update = self.calls = 0

    def begin(self, update):
        self.current_update = update

    def check(self, phase):
        if phase != self.phase or self.current_update != self.update:
            return
        self.calls += 1
        if self.calls in self.failing_calls:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


class FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, faults):
        ctx.faults = faults
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.faults.check("backward")
        return gradient, None


class Steps(torch.optim.AdamW):
    """Fails after it has changed some of the weights."""

    faults = None

    def step(self, closure=None):
        try:
            self.faults.check("optimizer")
        except torch.OutOfMemoryError:
            with torch.no_grad():
                self.param_groups[0]["params"][0].add_(1.0)
            raise
        return super().step(closure)


class Noisy:
    """A model with BatchNorm and dropout, whose bits change with an additional forward or other random numbers."""

    epochs = EPOCHS
    effective_batch = EFFECTIVE
    clip_norm = 1.0

    def __init__(self, faults=None, stop_after=None):
        self.faults, self.stop_after = faults or Faults(), stop_after

    def schedule(self, update, updates_per_epoch, total_updates):
        self.faults.begin(update)
        if update + 1 == self.stop_after:
            os.kill(os.getpid(), signal.SIGTERM)
        return 1 / (1 + update)

    def model(self):
        return nn.Sequential(
            nn.Linear(3, 8),
            *(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8, momentum=0.3), nn.Dropout(0.4)) for _ in range(2)),
            nn.Linear(8, 1),
        )

    def optimizer(self, model):
        optimizer = Steps(model.parameters(), lr=0.01)
        optimizer.faults = self.faults
        return optimizer

    def batch(self, size):
        return torch.zeros(size, 3), torch.zeros(size, 1)

    def loss(self, model, batch):
        inputs, targets = batch
        hidden = model[:2](inputs)  # this has changed running statistics
        self.faults.check("forward" if model.training else "evaluation")
        hidden = FailsBackward.apply(hidden, self.faults)
        return nn.functional.mse_loss(model[2:](hidden), targets)

    def data(self):
        inputs = torch.randn(PER_EPOCH * EFFECTIVE + 24, 3, generator=torch.Generator().manual_seed(0))
        targets = inputs.sum(dim=1, keepdim=True)
        train = PER_EPOCH * EFFECTIVE
        return {
            "train": TensorDataset(inputs[:train], targets[:train]),
            "validation": TensorDataset(inputs[train:], targets[train:]),
        }


def values(micro_batch=MICRO, **settings):
    # The first save starts at half of the interval, and the next one after the same number of updates.
    return {"micro_batch": micro_batch, "save_every_updates": 2 * SAVED_UPDATE - 1, **settings}


def training_result(run):
    """Return the bits of the training result, without the part of the state that records how it was made."""
    newest = max((run / "checkpoints").glob("update-*"))
    return {
        "name": newest.name,
        "model": (newest / "model.safetensors").read_bytes(),
        "optimizer": (newest / "optimizer.safetensors").read_bytes(),
        "light": light_bits(run / "light"),
        "best": light_bits(run / "best"),
    }


def events(run, kind):
    return [event for event in read(run / "events.jsonl") if event["event"] == kind]


@pytest.fixture(scope="module")
def smaller_from(tmp_path_factory):
    """Return a function for the result of a run without failures, with `micro_batch` from `update` on, MICRO before."""
    results = {}

    def run(update, micro_batch, precision="fp32"):
        key = update, micro_batch, precision
        if key not in results:
            folder = tmp_path_factory.mktemp("undisturbed")
            session(Noisy(stop_after=update), folder, values(precision=precision))
            session(Noisy(), folder, values(micro_batch, precision=precision), allow_inexact=True)
            assert [event["update"] for event in events(folder, "session")] == [0, update]
            results[key] = training_result(folder)
        return results[key]

    return run


# The first, a middle and the last microbatch.
@pytest.mark.parametrize("piece", [1, 2, PIECES])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_failing_microbatch_is_retried(smaller_from, tmp_path, phase, precision, piece):
    session(Noisy(Faults(phase, piece)), tmp_path, values(precision=precision))
    assert training_result(tmp_path) == smaller_from(FAILING_UPDATE, MICRO // 2, precision)
    (event,) = events(tmp_path, "oom")
    assert {name: event[name] for name in ("update", "during", "micro_batch", "done")} == {
        "update": FAILING_UPDATE,
        "during": "update",
        "micro_batch": MICRO,
        "done": f"microbatch {MICRO // 2}",
    }


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_optimizer_step_resumes_from_the_last_checkpoint(smaller_from, tmp_path, precision):
    session(Noisy(Faults("optimizer")), tmp_path, values(precision=precision))
    assert training_result(tmp_path) == smaller_from(SAVED_UPDATE, MICRO // 2, precision)
    (event,) = events(tmp_path, "oom")
    assert (event["update"], event["during"], event["back_to"]) == (FAILING_UPDATE, "optimizer step", SAVED_UPDATE)


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_trainer_resumes_from_the_last_checkpoint(tmp_path, phase):
    """A library's update cannot be repeated, so the result is that of the smaller microbatch from the checkpoint on."""
    straight = tmp_path / "straight"
    session(Noisy(stop_after=SAVED_UPDATE + 1), straight, values(), kind="trainer")
    (stopped,) = {event["update"] for event in events(straight, "stop")}
    session(Noisy(), straight, values(MICRO // 2), kind="trainer", allow_inexact=True)
    failing = tmp_path / "failing"
    session(Noisy(Faults(phase, 3, update=stopped)), failing, values(save_every_updates=1), kind="trainer")
    (event,) = events(failing, "oom")
    assert {name: event[name] for name in ("update", "during", "micro_batch", "done", "back_to")} == {
        "update": stopped, "during": "update", "micro_batch": MICRO, "done": f"microbatch {MICRO // 2}",
        "back_to": stopped,
    }  # fmt: skip
    assert {**training_result(failing), "best": None} == {**training_result(straight), "best": None}


@pytest.mark.parametrize(("kind", "batch"), [("engine", 1), ("engine", 2), ("engine", 3), ("trainer", 1)])
def test_evaluation_has_its_own_microbatch(tmp_path, kind, batch):
    # A trainer calls the schedule for the next update before the evaluation.
    faults = Faults("evaluation", batch, update=PER_EPOCH - 1 if kind == "engine" else PER_EPOCH)
    session(Noisy(), tmp_path / "straight", values(), kind=kind)
    session(Noisy(faults), tmp_path / "failing", values(), kind=kind)
    straight, failing = (training_result(tmp_path / name) for name in ("straight", "failing"))
    assert (failing["model"], failing["optimizer"]) == (straight["model"], straight["optimizer"])
    (event,) = events(tmp_path / "failing", "oom")
    assert (event["update"], event["during"], event["done"]) == (PER_EPOCH, "evaluation", f"microbatch {MICRO // 2}")
    losses = [[e["metrics"]["loss"] for e in events(tmp_path / name, "evaluation")] for name in ("straight", "failing")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_two_failures_in_one_update(smaller_from, tmp_path, phase):
    session(Noisy(Faults(phase, 2, times=2)), tmp_path, values())
    assert training_result(tmp_path) == smaller_from(FAILING_UPDATE, MICRO // 4)
    assert [event["done"] for event in events(tmp_path, "oom")] == ["microbatch 4", "microbatch 2"]


def test_microbatch_is_stored_and_shrinks_after_resuming(smaller_from, tmp_path):
    session(Noisy(Faults("forward", update=1), stop_after=FAILING_UPDATE), tmp_path, values())
    session(Noisy(Faults("forward")), tmp_path, values())
    assert [event["micro_batch"] for event in events(tmp_path, "session")] == [MICRO, MICRO // 2]
    assert [(event["update"], event["done"]) for event in events(tmp_path, "oom")] == [
        (1, "microbatch 4"),
        (FAILING_UPDATE, "microbatch 2"),
    ]


def test_failure_in_the_first_resumed_update(smaller_from, tmp_path):
    session(Noisy(stop_after=FAILING_UPDATE), tmp_path, values())
    session(Noisy(Faults("backward", PIECES)), tmp_path, values())
    assert training_result(tmp_path) == smaller_from(FAILING_UPDATE, MICRO // 2)


def test_next_session_uses_the_smaller_microbatch(smaller_from, tmp_path):
    session(Noisy(Faults("backward", PIECES), stop_after=FAILING_UPDATE + 2), tmp_path, values())
    session(Noisy(), tmp_path, values())
    assert training_result(tmp_path) == smaller_from(FAILING_UPDATE, MICRO // 2)


def test_users_microbatch_replaces_the_stored_one(tmp_path):
    session(Noisy(Faults("forward"), stop_after=FAILING_UPDATE + 1), tmp_path, values())
    session(Noisy(), tmp_path, values(16), allow_inexact=True)
    assert [event["micro_batch"] for event in events(tmp_path, "session")] == [MICRO, 16]


def test_every_update_and_sample_is_counted_once(tmp_path):
    session(Noisy(Faults("optimizer")), tmp_path, values())
    progress = [event for event in current(read(tmp_path / "events.jsonl")) if event["event"] == "progress"]
    assert sum(event["updates"] for event in progress) == PER_EPOCH * EPOCHS
    assert sum(event["samples"] for event in progress) == PER_EPOCH * EPOCHS * EFFECTIVE
