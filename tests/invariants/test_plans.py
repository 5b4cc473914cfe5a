"""Properties of every plan: more memory is never worse, a limit never makes it faster, its settings still fit."""

import dataclasses
import os

import pytest
import torch
from torch import nn

from shoestring.base.settings import Settings
from shoestring.base.units import MIB
from shoestring.hardware import targets
from shoestring.planning.candidates import Candidates
from shoestring.planning.estimation import make_estimate
from shoestring.planning.gpus import search
from shoestring.planning.planner import make_plan
from shoestring.planning.search import fastest
from shoestring.recipe.finding import find
from tests.planning.shared_tracers import cached_traces, tracer  # noqa: F401 - a fixture
from tests.slow import slow_except

pytestmark = pytest.mark.usefixtures("cached_traces")

T4 = targets.find("t4")


class Layers:
    """Six blocks whose activations are many times their weights."""

    effective_batch = 24

    def model(self):
        return nn.Sequential(
            nn.Linear(64, 256),
            nn.Sequential(
                *[nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Dropout(0.1), nn.Linear(512, 256)) for _ in range(6)]
            ),
            nn.Linear(256, 4),
        )

    def batch(self, size):
        return torch.zeros(size, 512, 64)

    def loss(self, model, batch):
        return model(batch).square().mean()

    def data(self):
        return torch.zeros(960, 512, 64)


class Normed(Layers):
    """Convolutions with BatchNorm, whose statistics need two samples."""

    effective_batch = 9

    def model(self):
        return nn.Sequential(
            *[nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()) for _ in range(5)]
        )

    def batch(self, size):
        return torch.zeros(size, 16, 96, 96)


class Heavy(Layers):
    """A model whose weights and optimizer states take nearly all memory."""

    effective_batch = 7

    def model(self):
        return nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(8)])

    def batch(self, size):
        return torch.zeros(size, 256, 1024)


KIND = pytest.mark.parametrize(
    "kind", slow_except({kind.__name__: kind for kind in (Layers, Normed, Heavy)}, "Normed", "Heavy")
)


def with_memory(mib, target=T4):
    return dataclasses.replace(target, device=dataclasses.replace(target.device, memory_bytes=mib * MIB))


def search_plan(kind, mib, settings=None):
    return search(Candidates(tracer(kind), find(kind()), with_memory(mib)), settings or Settings())


@pytest.mark.parametrize(
    ("kind", "min_mib", "max_mib"),
    [
        pytest.param(Layers, 300, 1500, marks=pytest.mark.slow),
        pytest.param(Normed, 290, 700, marks=pytest.mark.slow),
        (Heavy, 400, 800),
    ],
    ids=str,
)
def test_more_memory_never_gives_a_worse_plan(kind, min_mib, max_mib):
    steps = 60 if os.environ.get("SHOESTRING_SOAK") else 14
    sizes = [int(min_mib * (max_mib / min_mib) ** (step / (steps - 1))) for step in range(steps)]
    times = [best.seconds if (best := fastest(search_plan(kind, mib))) else float("inf") for mib in sizes]
    assert times == sorted(times, reverse=True)
    assert times[0] == float("inf") > times[-1] and len(set(times)) > 3


@pytest.mark.parametrize(("kind", "mib"), [(Heavy, 600)], ids=str)
def test_two_gpus_never_give_a_slower_plan_than_one(kind, mib):
    one_gpu = search_plan(kind, mib)[0]
    two_gpus = search(
        Candidates(tracer(kind), find(kind()), dataclasses.replace(with_memory(mib), gpus=2)), Settings()
    )[0]
    assert one_gpu.fits and two_gpus.fits
    assert two_gpus.seconds <= one_gpu.seconds


@KIND
@pytest.mark.parametrize("fixed", [{"precision": "fp32"}, {"precision": "fp16", "checkpointing": "full"}], ids=str)
def test_larger_microbatch_never_has_a_lower_peak(kind, fixed):
    candidates = Candidates(tracer(kind), find(kind()), with_memory(16_000))
    sizes = [size for size in (1, 2, 3, 4, 5, 8, 12) if 2 * size <= kind.effective_batch]
    peaks = [
        candidates.evaluate(Settings(micro_batch=size, **({"checkpointing": "no"} | fixed))).memory.allocated.value
        for size in sizes
    ]
    assert peaks == sorted(peaks) and peaks[0] < peaks[-1]


@pytest.mark.parametrize("mib", [330, 700])
@pytest.mark.parametrize(
    "fixed",
    [{"micro_batch": 5}, {"precision": "fp32"}, {"checkpointing": "full"}, {"checkpointing": "3", "micro_batch": 24}],
    ids=str,
)
def test_fixed_setting_never_makes_a_plan_faster(mib, fixed):
    unlimited, limited = (fastest(search_plan(Layers, mib, settings)) for settings in (Settings(), Settings(**fixed)))
    assert limited is None or (unlimited is not None and unlimited.seconds <= limited.seconds * 1.02)


def test_limit_never_makes_a_plan_faster_or_better():
    target = with_memory(800)
    unlimited = make_plan(find(Layers()), target, Settings())
    ranks = {"fits": 0, "fits with changes": 1, "does not fit": 2}
    for limits in (
        {"session_seconds": 200.0},
        {"session_seconds": 121.0},
        {"disk_bytes": 10**9},
        {"disk_bytes": 10**6},
    ):
        limited = make_plan(find(Layers()), targets.with_limits(target, **limits), Settings())
        assert ranks[limited.verdict] >= ranks[unlimited.verdict]
        assert limited.time.predicted.total_seconds >= unlimited.time.predicted.total_seconds
        assert not limited.sessions or limited.hours >= unlimited.hours


@KIND
def test_settings_of_a_plan_fit_when_estimated(kind):
    sizes = (300, 400, 600, 1100, 3000) if os.environ.get("SHOESTRING_SOAK") else (400,)
    for mib in sizes:
        best = search_plan(kind, mib)[0]
        estimate = make_estimate(find(kind()), with_memory(mib), best.settings)
        assert estimate.memory.fits == best.fits
        assert estimate.peak_bytes == best.memory.peak_bytes
