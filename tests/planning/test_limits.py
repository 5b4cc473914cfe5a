"""Runs that do not fit: the plan names the binding limit and the smallest sufficient change."""

import dataclasses
import re
from typing import Annotated

import pytest
import torch
from torch import nn

from shoestring.base.settings import Settings
from shoestring.base.units import MIB, parse_bytes
from shoestring.hardware import targets
from shoestring.hardware.catalog import DEVICES
from shoestring.planning.planner import make_plan
from shoestring.recipe.finding import find
from shoestring.recipe.option_notes import Cheaper
from tests.planning.shared_tracers import cached_traces  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("cached_traces")

T4 = targets.find("t4")


class Reader:
    """Samples of `seq_len` steps, processed at once."""

    effective_batch, epochs, seq_len = 4, 1, 4096

    def __init__(self, options=None):
        self.options = options or Options()

    def model(self):
        return nn.Sequential(*[nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)) for _ in range(4)])

    def batch(self, size):
        return torch.zeros(size, self.options.seq_len, 256)

    def loss(self, model, batch):
        return model(batch).square().mean()

    def data(self):
        return torch.zeros(400, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    effective_batch: int = 4
    epochs: int = 1
    seq_len: Annotated[int, "the length of a sample", Cheaper("shorter samples")] = 16384


def plan_for(target, requested=None, *, thorough=True, recipe=None):
    return make_plan(find(recipe or Reader()), target, requested or Settings(precision="fp32"), thorough=thorough)


def with_memory(mib):
    return dataclasses.replace(T4, device=dataclasses.replace(T4.device, memory_bytes=mib * MIB))


@pytest.mark.slow
def test_largest_fitting_sample_is_proposed_for_memory():
    plan = plan_for(with_memory(460))
    assert (plan.verdict, plan.binding.name, plan.fits) == ("fits with changes", "GPU memory", False)
    (change,) = re.findall(r"--set seq_len=(\d+)", plan.changes[0])
    assert plan_for(with_memory(460), thorough=False, recipe=Reader(Options(seq_len=int(change)))).fits
    # One eighth more would be too much.
    longer = Reader(Options(seq_len=int(change) + 2048))
    assert not plan_for(with_memory(460), thorough=False, recipe=longer).fits
    assert any("a device with" in change for change in plan.changes)


def test_plan_proposes_to_choose_a_too_large_microbatch():
    plan = plan_for(with_memory(900), Settings(precision="fp32", micro_batch=4, checkpointing="no"))
    assert plan.verdict == "fits with changes"
    assert "micro_batch=" in plan.changes[0] or "checkpointing=" in plan.changes[0]
    assert "the training result stays the same" in plan.changes[0]


def test_sufficient_gpu_is_named_for_too_large_weights():
    class Huge(Reader):
        def model(self):
            return nn.Sequential(*[nn.Linear(8192, 8192) for _ in range(24)])

        def batch(self, size):
            return torch.zeros(size, 8192)

    plan = plan_for(T4, recipe=Huge(Options(seq_len=1)))
    assert plan.verdict in ("does not fit", "fits with changes")
    assert plan.binding.name == "GPU memory"
    assert any(device.title in plan.changes[-1] for device in DEVICES.values())
    assert plan.time.predicted.update_seconds > 0


def test_session_shorter_than_an_update_does_not_fit():
    plan = plan_for(targets.with_limits(with_memory(8000), session_seconds=60.0))
    assert (plan.verdict, plan.binding.name, plan.sessions) == ("does not fit", "session", ())
    assert plan.changes == (f"session: {plan.limits[-1].enough} would be enough",)
    enough = plan_for(targets.with_limits(with_memory(8000), session_seconds=plan.limits[-1].needs + 1), thorough=False)
    assert enough.fits and len(enough.sessions) > 1


def test_disk_too_small_for_three_checkpoints_does_not_fit():
    plan = plan_for(targets.with_limits(with_memory(8000), disk_bytes=20 * 10**6))
    assert (plan.verdict, plan.binding.name) == ("does not fit", "disk")
    (needs,) = re.findall(r"disk: ([\d.]+ MiB) of disk", plan.changes[0])
    size = plan.disk.full_checkpoint_bytes
    assert 3 * size < plan.disk.peak_bytes == pytest.approx(parse_bytes(needs), rel=0.01)
    assert plan_for(targets.with_limits(with_memory(8000), disk_bytes=plan.disk.peak_bytes), thorough=False).fits


def test_checkpoints_of_epochs_are_counted():
    """That of the last epoch is one of the newest in any case."""
    recipe = Reader(Options(epochs=5))
    plain, saved = (
        plan_for(with_memory(8000), Settings(precision="fp32", save_epochs=every), thorough=False, recipe=recipe).disk
        for every in (None, 2)
    )
    assert plain.epochs == 5
    assert saved.peak_bytes - plain.peak_bytes == saved.parts["2 checkpoints at the ends of epochs"]
    assert saved.parts["2 checkpoints at the ends of epochs"] == 2 * plain.full_checkpoint_bytes


def test_light_weights_in_fp16_are_chosen_for_a_small_disk_and_else_proposed():
    whole = plan_for(with_memory(8000), thorough=False)
    disk, own = whole.disk, Settings(precision="fp32", light_weights="own", keep_checkpoints=2)
    assert whole.settings.light_weights == "own"
    small = targets.with_limits(with_memory(8000), disk_bytes=disk.peak_bytes - disk.light_checkpoint_bytes)
    chosen = plan_for(small, thorough=False)
    assert chosen.fits and chosen.settings.light_weights == "fp16"
    assert any(reason.startswith("light_weights fp16: with the best and last weights") for reason in chosen.reasons)
    plan = plan_for(small, own)
    assert (plan.verdict, plan.binding.name) == ("fits with changes", "disk")
    assert plan.changes[0] == (
        "disk: --set light_weights=fp16 would be enough (best and last weights in half precision; the training result "
        "stays the same)"
    )
    assert plan_for(small, own.replace(light_weights="fp16"), thorough=False).fits


def test_one_checkpoint_is_kept_on_a_small_disk_and_else_proposed():
    """Where light weights of half the size are not enough."""
    whole = plan_for(with_memory(8000), thorough=False)
    disk = whole.disk
    assert whole.settings.keep_checkpoints == 2
    small = targets.with_limits(with_memory(8000), disk_bytes=disk.peak_bytes - 2 * disk.light_checkpoint_bytes)
    chosen = plan_for(small, thorough=False)
    assert chosen.fits and (chosen.settings.keep_checkpoints, chosen.settings.light_weights) == (1, "own")
    assert chosen.disk.peak_bytes == disk.peak_bytes - disk.full_checkpoint_bytes
    assert any(reason.startswith("keep_checkpoints 1: with 2 full checkpoints") for reason in chosen.reasons)
    plan = plan_for(small, Settings(precision="fp32", keep_checkpoints=2))
    assert plan.changes[0].startswith("disk: --set keep_checkpoints=1 would be enough (one full checkpoint; the")


def test_a_run_without_saves_needs_less_time_and_the_same_disk():
    """Sessions that are paused leave as many checkpoints."""
    plain, without = (
        plan_for(with_memory(8000), Settings(precision="fp32", save=save), thorough=False) for save in ("yes", "none")
    )
    assert plain.disk.peak_bytes == without.disk.peak_bytes
    assert without.job["saving"].seconds < plain.job["saving"].seconds


def test_microbatch_larger_than_an_update_is_reported():
    plan = plan_for(with_memory(8000), Settings(precision="fp32", micro_batch=100), thorough=False)
    reason = "100 was requested, but an update has 4 samples, which are divided into microbatches of at most 4"
    assert any(reason in line for line in plan.reasons)
    exact = plan_for(with_memory(8000), Settings(micro_batch=4), thorough=False)
    assert "micro_batch 4: this value was requested" in exact.reasons


def test_every_exceeded_limit_is_reported():
    plan = plan_for(targets.with_limits(with_memory(8000), disk_bytes=10**6, session_seconds=60.0), thorough=False)
    assert [limit.name for limit in plan.limits if not limit.holds] == ["disk", "session"]
    assert [change.partition(":")[0] for change in plan.changes] == ["disk", "session"]
    assert plan.binding.name == "disk"


def test_nearest_limit_is_binding_if_all_hold():
    plan = plan_for(with_memory(2200), thorough=False)
    assert plan.verdict == "fits" and plan.changes == ()
    assert plan.binding.name == "GPU memory"
