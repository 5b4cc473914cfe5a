"""Memory that runs out is an event: from that update on a run is, bit for bit, one that used the smaller microbatch
from that update on."""

import os
import signal

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from shoestring.monitor.events import current, read
from tests.sessions import light_bits, session

EFFECTIVE, MICRO = 32, 8
PIECES = EFFECTIVE // MICRO
PER_EPOCH, EPOCHS = 3, 3
AT = 4  # the update that fails, the fifth: in the midst of the second epoch
SAVED_AT = 3  # the checkpoint before it


class Faults:
    """Memory runs out the `at`th time, and `times` in all, that `phase` asks in update number `update`."""

    def __init__(self, phase="", at=1, *, update=AT, times=1):
        self.phase, self.asked, self.update, self.now = phase, range(at, at + times), update, 0
        self.seen = 0

    def begin(self, update):
        self.now = update

    def ask(self, phase):
        if phase != self.phase or self.now != self.update:
            return
        self.seen += 1
        if self.seen in self.asked:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


class FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, faults):
        ctx.faults = faults
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.faults.ask("backward")
        return gradient, None


class Steps(torch.optim.AdamW):
    """Fails when some weights have been changed already."""

    faults = None

    def step(self, closure=None):
        try:
            self.faults.ask("optimizer")
        except torch.OutOfMemoryError:
            with torch.no_grad():
                self.param_groups[0]["params"][0].add_(1.0)
            raise
        return super().step(closure)


class Noisy:
    """BatchNorm and dropout: a forward too many, or other random numbers, would show."""

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
        hidden = model[:2](inputs)  # running statistics have changed by now
        self.faults.ask("forward" if model.training else "evaluation")
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


def values(micro_batch=MICRO, **more):
    # The first save begins at half of the interval, and the next as long after.
    return {"micro_batch": micro_batch, "save_every_updates": 2 * SAVED_AT - 1, **more}


def learnt(run):
    """Everything that was learnt, to the last bit; how, stands in the rest of the state."""
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
    """What is learnt when `micro_batch` is used from update `at` on, MICRO before it, and nothing ever fails."""
    made = {}

    def run(at, micro_batch, precision="fp32"):
        key = at, micro_batch, precision
        if key not in made:
            folder = tmp_path_factory.mktemp("undisturbed")
            session(Noisy(stop_after=at), folder, values(precision=precision))
            session(Noisy(), folder, values(micro_batch, precision=precision), allow_inexact=True)
            assert [event["update"] for event in events(folder, "session")] == [0, at]
            made[key] = learnt(folder)
        return made[key]

    return run


# The first, a middle and the last microbatch.
@pytest.mark.parametrize("piece", [1, 2, PIECES])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_piece_of_an_update(smaller_from, tmp_path, phase, precision, piece):
    session(Noisy(Faults(phase, piece)), tmp_path, values(precision=precision))
    assert learnt(tmp_path) == smaller_from(AT, MICRO // 2, precision)
    (event,) = events(tmp_path, "oom")
    assert {name: event[name] for name in ("update", "during", "micro_batch", "done")} == {
        "update": AT,
        "during": "update",
        "micro_batch": MICRO,
        "done": f"microbatch {MICRO // 2}",
    }


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_optimizers_step_goes_back_to_the_last_checkpoint(smaller_from, tmp_path, precision):
    session(Noisy(Faults("optimizer")), tmp_path, values(precision=precision))
    assert learnt(tmp_path) == smaller_from(SAVED_AT, MICRO // 2, precision)
    (event,) = events(tmp_path, "oom")
    assert (event["update"], event["during"], event["back_to"]) == (AT, "optimizer step", SAVED_AT)


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_trainer_goes_back_to_the_last_checkpoint(tmp_path, phase):
    """A library's update cannot be made again, so it is as if the smaller size had been in force since then."""
    straight = tmp_path / "straight"
    session(Noisy(stop_after=SAVED_AT + 1), straight, values(), kind="trainer")
    (stopped,) = {event["update"] for event in events(straight, "stop")}
    session(Noisy(), straight, values(MICRO // 2), kind="trainer", allow_inexact=True)
    hurt = tmp_path / "hurt"
    session(Noisy(Faults(phase, 3, update=stopped)), hurt, values(save_every_updates=1), kind="trainer")
    (event,) = events(hurt, "oom")
    assert {name: event[name] for name in ("update", "during", "micro_batch", "done", "back_to")} == {
        "update": stopped, "during": "update", "micro_batch": MICRO, "done": f"microbatch {MICRO // 2}",
        "back_to": stopped,
    }  # fmt: skip
    assert {**learnt(hurt), "best": None} == {**learnt(straight), "best": None}


@pytest.mark.parametrize(("kind", "batch"), [("engine", 1), ("engine", 2), ("engine", 3), ("trainer", 1)])
def test_evaluation_has_a_microbatch_of_its_own(tmp_path, kind, batch):
    # A trainer's schedule is asked for the next update before the evaluation.
    faults = Faults("evaluation", batch, update=PER_EPOCH - 1 if kind == "engine" else PER_EPOCH)
    session(Noisy(), tmp_path / "straight", values(), kind=kind)
    session(Noisy(faults), tmp_path / "hurt", values(), kind=kind)
    straight, hurt = (learnt(tmp_path / name) for name in ("straight", "hurt"))
    assert (hurt["model"], hurt["optimizer"]) == (straight["model"], straight["optimizer"])
    (event,) = events(tmp_path / "hurt", "oom")
    assert (event["update"], event["during"], event["done"]) == (PER_EPOCH, "evaluation", f"microbatch {MICRO // 2}")
    losses = [[e["metrics"]["loss"] for e in events(tmp_path / name, "evaluation")] for name in ("straight", "hurt")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_twice_in_one_update(smaller_from, tmp_path, phase):
    session(Noisy(Faults(phase, 2, times=2)), tmp_path, values())
    assert learnt(tmp_path) == smaller_from(AT, MICRO // 4)
    assert [event["done"] for event in events(tmp_path, "oom")] == ["microbatch 4", "microbatch 2"]


def test_the_size_is_kept_in_the_run_and_gets_smaller_right_after_resuming(smaller_from, tmp_path):
    session(Noisy(Faults("forward", update=1), stop_after=AT), tmp_path, values())
    session(Noisy(Faults("forward")), tmp_path, values())
    assert [event["micro_batch"] for event in events(tmp_path, "session")] == [MICRO, MICRO // 2]
    assert [(event["update"], event["done"]) for event in events(tmp_path, "oom")] == [
        (1, "microbatch 4"),
        (AT, "microbatch 2"),
    ]


def test_right_after_resuming(smaller_from, tmp_path):
    session(Noisy(stop_after=AT), tmp_path, values())
    session(Noisy(Faults("backward", PIECES)), tmp_path, values())
    assert learnt(tmp_path) == smaller_from(AT, MICRO // 2)


def test_paused_after_it_the_next_session_goes_on_with_what_was_learnt(smaller_from, tmp_path):
    session(Noisy(Faults("backward", PIECES), stop_after=AT + 2), tmp_path, values())
    session(Noisy(), tmp_path, values())
    assert learnt(tmp_path) == smaller_from(AT, MICRO // 2)


def test_another_microbatch_that_a_person_sets_counts_more_than_what_was_learnt(tmp_path):
    session(Noisy(Faults("forward"), stop_after=AT + 1), tmp_path, values())
    session(Noisy(), tmp_path, values(16), allow_inexact=True)
    assert [event["micro_batch"] for event in events(tmp_path, "session")] == [MICRO, 16]


def test_every_update_and_sample_is_accounted_for_once(tmp_path):
    session(Noisy(Faults("optimizer")), tmp_path, values())
    progress = [event for event in current(read(tmp_path / "events.jsonl")) if event["event"] == "progress"]
    assert sum(event["updates"] for event in progress) == PER_EPOCH * EPOCHS
    assert sum(event["samples"] for event in progress) == PER_EPOCH * EPOCHS * EFFECTIVE
