"""The available precisions, and values that are not finite."""

import json

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from shoestring.base.errors import RunError, UsageError
from shoestring.training.checkpoint.store import Store
from shoestring.training.data.order import DataOrder
from shoestring.training.engine.precision import NON_FINITE_LIMIT, mixed_precision, precision_note
from shoestring.training.monitor.events import read
from shoestring.training.non_finite import weights_are_finite
from tests.sessions import session

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("has_bf16", [True, False])
def test_emulated_bf16_is_rejected(monkeypatch, has_bf16):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    # torch reports the same on Turing, which emulates bf16.
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: has_bf16 or including_emulation
    )
    if has_bf16:
        assert mixed_precision("bf16", CUDA).scaler is None
    else:
        with pytest.raises(UsageError, match="precision=bf16: Tesla T4 has no bf16 units") as error:
            mixed_precision("bf16", CUDA)
        assert error.value.hint == "set precision=fp16"


def test_fp16_on_a_cpu_has_a_note():
    assert "for tests" in precision_note("fp16", CPU)
    assert [precision_note("fp16", CUDA), precision_note("bf16", CPU), precision_note("fp32", CPU)] == [None] * 3


class Poisoned:
    """A linear model whose loss or gradient (`target`) is `poison` in the `poisoned_updates` (from 0)."""

    epochs = 5
    effective_batch = 10
    learning_rate = 0.01

    def __init__(self, poisoned_updates, poison=float("nan"), target="loss", clip_norm=None):
        self.poisoned_updates, self.poison, self.target, self.clip_norm = poisoned_updates, poison, target, clip_norm
        self.current_update = 0

    def model(self):
        return nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))

    def batch(self, size):
        return (torch.zeros(size, 2),)

    def schedule(self, update, updates_per_epoch, total_updates):
        self.current_update = update
        return 1.0

    def loss(self, model, batch):
        result = model(batch[0]).square().mean()
        if self.current_update not in self.poisoned_updates:
            return result
        return result * self.poison if self.target == "loss" else Gradient.apply(result, self.poison)

    def data(self):
        return TensorDataset(torch.randn(40, 2, generator=torch.Generator().manual_seed(0)))


class Gradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, factor):
        ctx.factor = factor
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


def values(precision):
    return {"precision": precision, "micro_batch": 5, "save_every_updates": 1}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_non_finite_loss_ends_the_run_and_names_samples(tmp_path, precision):
    with pytest.raises(RunError, match="the loss of update 7 is nan") as error:
        session(Poisoned({6}), tmp_path, values(precision))
    assert error.value.problems == (
        "the last good checkpoint is update-00000006",
        f"the update's samples are in {tmp_path / 'failed' / 'update-7.json'}",
    )
    failed_update = json.loads((tmp_path / "failed" / "update-7.json").read_text())
    assert failed_update == {
        "update": 7,
        "what": "loss",
        "value": "nan",
        "samples": DataOrder(samples=40, effective_batch=10, seed=0).indices(6),
        "checkpoint": "update-00000006",
        "epoch": 2,
        "seed": 0,
        "precision": precision,
        "replay": f"shoestring replay {tmp_path} --update 7",
    }
    assert Store(tmp_path / "checkpoints").updates()[-1] == 6


def test_run_continues_without_the_cause(tmp_path):
    with pytest.raises(RunError):
        session(Poisoned({6}), tmp_path, values("fp32"))
    assert session(Poisoned(()), tmp_path, values("fp32")).status == "finished"


def test_fp16_skips_and_counts_a_few_updates(tmp_path):
    session(Poisoned({6, 7, 8}), tmp_path, values("fp16"))
    progress = [event for event in read(tmp_path / "events.jsonl") if event["event"] == "progress"]
    assert sum(event["updates"] for event in progress) == 20
    assert sum(event["skipped"] for event in progress) >= 3
    state = Store(tmp_path / "checkpoints").load().state
    assert all(torch.isfinite(value.double()).all() for value in state["model"].values())


def test_fp16_ends_after_several_consecutive_updates(tmp_path):
    with pytest.raises(RunError, match=f"the loss of update {4 + NON_FINITE_LIMIT['fp16']} is nan"):
        session(Poisoned(range(4, 99)), tmp_path, values("fp16"))
    assert Store(tmp_path / "checkpoints").load().update < 4 + NON_FINITE_LIMIT["fp16"]


def test_fp16_gradient_overflow_at_any_scale_ends_the_run(tmp_path):
    with pytest.raises(RunError, match="the gradient of update 7 is"):
        session(Poisoned({6}, float("inf"), "gradient", clip_norm=1.0), tmp_path, values("fp16"))


def test_non_finite_weights_are_never_saved(tmp_path):
    """The loss is finite, but the gradient, which is not clipped and so not checked, is not."""
    with pytest.raises(RunError, match="largest weight of update 7 is nan"):
        session(Poisoned({6}, target="gradient"), tmp_path, values("fp32"))
    assert Store(tmp_path / "checkpoints").load().update == 6


def test_clipped_non_finite_gradient_is_named(tmp_path):
    with pytest.raises(RunError, match="the gradient of update 7 is nan"):
        session(Poisoned({6}, target="gradient", clip_norm=1.0), tmp_path, values("fp32"))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_single_non_finite_weight_is_detected(bad):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[0].weight.data[0, 0] = 1e30  # its square overflows
    assert weights_are_finite(model)
    model[1].weight.data[2, 1] = bad
    assert not weights_are_finite(model)
    assert weights_are_finite(model.requires_grad_(False))
