"""Which arithmetic there is, and numbers that are not finite."""

import json

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from shoestring.checkpoint.store import Store
from shoestring.data.order import DataOrder
from shoestring.engine.precision import IN_A_ROW, mixed_precision, remark
from shoestring.errors import RunError, UsageError
from shoestring.monitor.events import read
from shoestring.train.failure import weights_finite
from tests.sessions import session

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("real", [True, False])
def test_bf16_that_a_gpu_emulates_is_no_bf16(monkeypatch, real):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    # As torch does on Turing: by emulation it can.
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: real or including_emulation)
    if real:
        assert mixed_precision("bf16", CUDA).scaler is None
    else:
        with pytest.raises(UsageError, match="precision=bf16: Tesla T4 has no units") as error:
            mixed_precision("bf16", CUDA)
        assert error.value.hint == "precision=fp16"


def test_fp16_on_a_cpu_is_said_to_be_for_tests():
    assert "for tests" in remark("fp16", CPU)
    assert [remark("fp16", CUDA), remark("bf16", CPU), remark("fp32", CPU)] == [None] * 3


class Poisoned:
    """A line, whose loss or gradient is `poison` in the updates in `at` (from 0)."""

    epochs = 5
    effective_batch = 10
    learning_rate = 0.01

    def __init__(self, at, poison=float("nan"), where="loss", clip_norm=None):
        self.at, self.poison, self.where, self.now, self.clip_norm = at, poison, where, 0, clip_norm

    def model(self):
        return nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))

    def batch(self, size):
        return (torch.zeros(size, 2),)

    def schedule(self, update, updates_per_epoch, total_updates):
        self.now = update
        return 1.0

    def loss(self, model, batch):
        result = model(batch[0]).square().mean()
        if self.now not in self.at:
            return result
        return result * self.poison if self.where == "loss" else Gradient.apply(result, self.poison)

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
def test_the_first_loss_that_is_not_finite_ends_the_run_and_its_samples_are_kept(tmp_path, precision):
    with pytest.raises(RunError, match="the loss of update 7 is nan") as error:
        session(Poisoned({6}), tmp_path, values(precision))
    assert error.value.problems == (
        "the last good checkpoint is update-00000006",
        f"the update's samples are in {tmp_path / 'failed' / 'update-7.json'}",
    )
    kept = json.loads((tmp_path / "failed" / "update-7.json").read_text())
    assert kept == {
        "update": 7,
        "what": "loss",
        "value": "nan",
        "samples": DataOrder(samples=40, effective_batch=10, seed=0).indices(6),
        "checkpoint": "update-00000006",
        "epoch": 2,
        "seed": 0,
        "precision": precision,
    }
    assert Store(tmp_path / "checkpoints").updates()[-1] == 6


def test_the_cause_gone_the_run_goes_on_from_there(tmp_path):
    with pytest.raises(RunError):
        session(Poisoned({6}), tmp_path, values("fp32"))
    assert session(Poisoned(()), tmp_path, values("fp32")).status == "finished"


def test_in_fp16_a_few_are_left_out_and_counted(tmp_path):
    session(Poisoned({6, 7, 8}), tmp_path, values("fp16"))
    progress = [event for event in read(tmp_path / "events.jsonl") if event["event"] == "progress"]
    assert sum(event["updates"] for event in progress) == 20
    assert sum(event["skipped"] for event in progress) >= 3
    state = Store(tmp_path / "checkpoints").load().state
    assert all(torch.isfinite(value.double()).all() for value in state["model"].values())


def test_in_fp16_several_in_a_row_end_the_run(tmp_path):
    with pytest.raises(RunError, match=f"the loss of update {4 + IN_A_ROW['fp16']} is nan"):
        session(Poisoned(range(4, 99)), tmp_path, values("fp16"))
    assert Store(tmp_path / "checkpoints").load().update < 4 + IN_A_ROW["fp16"]


def test_in_fp16_a_gradient_that_overflows_at_any_scale_ends_the_run(tmp_path):
    with pytest.raises(RunError, match="the gradient of update 7 is"):
        session(Poisoned({6}, float("inf"), "gradient", clip_norm=1.0), tmp_path, values("fp16"))


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    """The loss is finite, the gradient is not, and nobody looks at it."""
    with pytest.raises(RunError, match="largest weight of update 7 is nan"):
        session(Poisoned({6}, where="gradient"), tmp_path, values("fp32"))
    assert Store(tmp_path / "checkpoints").load().update == 6


def test_the_gradient_is_named_where_it_is_clipped(tmp_path):
    with pytest.raises(RunError, match="the gradient of update 7 is nan"):
        session(Poisoned({6}, where="gradient", clip_norm=1.0), tmp_path, values("fp32"))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_weight_is_enough(bad):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[0].weight.data[0, 0] = 1e30  # its square is none
    assert weights_finite(model)
    model[1].weight.data[2, 1] = bad
    assert not weights_finite(model)
    assert weights_finite(model.requires_grad_(False))
