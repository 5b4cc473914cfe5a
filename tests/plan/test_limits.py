"""Impossible wishes: the binding limit is named, and the smallest change that would do."""

import dataclasses
import re

import pytest
import torch
from torch import nn

from shoestring.hardware import targets
from shoestring.plan.plan import make_plan
from shoestring.recipe.finding import find
from shoestring.settings import Settings
from shoestring.units import MIB, parse_bytes
from tests.plan.remembering import remembered  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("remembered")

T4 = targets.find("t4")


class Reader:
    """Samples of `seq_len` steps, read at once."""

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
    seq_len: int = 16384


def plan(target, wanted=None, *, thorough=True, recipe=None):
    return make_plan(find(recipe or Reader()), target, wanted or Settings(precision="fp32"), thorough=thorough)


def with_memory(mib):
    return dataclasses.replace(T4, device=dataclasses.replace(T4.device, memory_bytes=mib * MIB))


def test_what_no_settings_fit_names_memory_and_the_largest_sample_that_would():
    found = plan(with_memory(460))
    assert (found.verdict, found.binding.name, found.fits) == ("fits with changes", "GPU memory", False)
    (change,) = re.findall(r"--set seq_len=(\d+)", found.changes[0])
    assert plan(with_memory(460), thorough=False, recipe=Reader(Options(seq_len=int(change)))).fits
    # An eighth more of all would be too much.
    more = Reader(Options(seq_len=int(change) + 2048))
    assert not plan(with_memory(460), thorough=False, recipe=more).fits
    assert any("a device with" in change for change in found.changes)


def test_a_microbatch_that_was_asked_for_and_is_too_large_is_given_back_to_the_plan():
    found = plan(with_memory(900), Settings(precision="fp32", micro_batch=4, checkpointing="no"))
    assert found.verdict == "fits with changes"
    assert "micro_batch=" in found.changes[0] or "checkpointing=" in found.changes[0]
    assert "with the same learning" in found.changes[0]


def test_weights_alone_that_do_not_fit_name_a_device_that_would():
    class Huge(Reader):
        def model(self):
            return nn.Sequential(*[nn.Linear(8192, 8192) for _ in range(24)])

        def batch(self, size):
            return torch.zeros(size, 8192)

    found = plan(T4, recipe=Huge(Options(seq_len=1)))
    assert found.verdict in ("does not fit", "fits with changes")
    assert found.binding.name == "GPU memory"
    assert any(title in found.changes[-1] for title in ("A100", "A10", "3090", "4090", "L4"))
    assert found.time.predicted.update_seconds > 0


def test_a_session_shorter_than_an_update_and_its_save():
    found = plan(targets.under(with_memory(8000), session_seconds=60.0))
    assert (found.verdict, found.binding.name, found.sessions) == ("does not fit", "session", ())
    assert found.changes == (f"session: {found.limits[-1].enough}",)
    enough = plan(targets.under(with_memory(8000), session_seconds=found.limits[-1].needs + 1), thorough=False)
    assert enough.fits and len(enough.sessions) > 1


def test_a_disk_that_cannot_hold_two_checkpoints_and_the_one_being_written():
    found = plan(targets.under(with_memory(8000), disk_bytes=20 * 10**6))
    assert (found.verdict, found.binding.name) == ("does not fit", "disk")
    (needs,) = re.findall(r"disk: ([\d.]+ MiB) of disk", found.changes[0])
    size = found.disk.full_checkpoint_bytes
    assert 3 * size < found.disk.peak_bytes == pytest.approx(parse_bytes(needs), rel=0.01)
    assert plan(targets.under(with_memory(8000), disk_bytes=found.disk.peak_bytes), thorough=False).fits


def test_a_disk_that_holds_the_run_once_its_weights_alone_are_rounded():
    whole = plan(with_memory(8000), thorough=False).disk
    found = plan(targets.under(with_memory(8000), disk_bytes=whole.peak_bytes - whole.light_checkpoint_bytes))
    assert (found.verdict, found.binding.name) == ("fits with changes", "disk")
    assert found.changes[0] == (
        "disk: --set light_weights=fp16 (best and last weights in half precision, with the same learning)"
    )
    rounded = Settings(precision="fp32", light_weights="fp16")
    assert plan(targets.under(with_memory(8000), disk_bytes=found.target.platform.disk_bytes), rounded).fits
    # Half of the weights is not enough of a change everywhere.
    less = plan(targets.under(with_memory(8000), disk_bytes=whole.peak_bytes - 2 * whole.light_checkpoint_bytes))
    assert less.verdict == "does not fit"


def test_a_microbatch_larger_than_an_update_is_told_of():
    found = plan(with_memory(8000), Settings(precision="fp32", micro_batch=100), thorough=False)
    assert any("as asked, but an update has 4, in parts of 4" in reason for reason in found.reasons)
    assert "micro_batch 4: as asked" in plan(with_memory(8000), Settings(micro_batch=4), thorough=False).reasons


def test_every_limit_that_is_exceeded_is_told_of():
    found = plan(targets.under(with_memory(8000), disk_bytes=10**6, session_seconds=60.0), thorough=False)
    assert [limit.name for limit in found.limits if not limit.holds] == ["disk", "session"]
    assert [change.partition(":")[0] for change in found.changes] == ["disk", "session"]
    assert found.binding.name == "disk"


def test_where_all_holds_the_nearest_limit_is_the_binding_one():
    found = plan(with_memory(2200), thorough=False)
    assert found.verdict == "fits" and found.changes == ()
    assert found.binding.name == "GPU memory"
