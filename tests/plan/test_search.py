"""The search over made-up costs: what is chosen, in which order things are tried, and when it stops."""

from types import SimpleNamespace

import pytest
import torch

import shoestring
from shoestring.errors import QuestionError
from shoestring.hardware import targets
from shoestring.plan import search as room
from shoestring.recipe import live
from shoestring.settings import Settings

T4 = targets.find("t4")


class Nothing:
    effective_batch = 64

    def model(self): ...
    def batch(self, size): ...
    def loss(self, model, batch): ...


def search(monkeypatch, *, fits, seconds, wanted=None, target=T4):
    tried = []

    def candidate(tracer, loaded, target, settings):
        tried.append((settings.precision, settings.micro_batch))
        time = seconds(settings)
        return room.Candidate(
            settings=settings,
            trace=None,
            memory=SimpleNamespace(fits=fits(settings), high_bytes=settings.micro_batch),
            time=None if time is None else SimpleNamespace(value=time),
        )

    monkeypatch.setattr(room, "candidate", candidate)
    found = room.search(None, live(Nothing()), target, wanted or Settings())
    return found[0].settings, tried


def test_the_largest_microbatch_that_fits_is_found_for_each_precision(monkeypatch):
    chosen, tried = search(
        monkeypatch,
        fits=lambda s: s.micro_batch <= (32 if s.precision == "fp16" else 10),
        seconds=lambda s: 1.0 if s.precision == "fp16" else 2.0,
    )
    assert (chosen.precision, chosen.micro_batch) == ("fp16", 32)
    assert tried == [("fp32", 64), ("fp32", 32), ("fp32", 16), ("fp32", 8), ("fp16", 64), ("fp16", 32)]


def test_near_equals_are_decided_for_fp32(monkeypatch):
    for fp16, expected in ((0.95, "fp32"), (0.8, "fp16")):
        chosen, _ = search(
            monkeypatch, fits=lambda s: True, seconds=lambda s, fp16=fp16: fp16 if s.precision == "fp16" else 1.0
        )
        assert chosen.precision == expected


def test_what_fits_goes_before_what_is_fast(monkeypatch):
    chosen, _ = search(
        monkeypatch,
        fits=lambda s: s.precision == "fp32" and s.micro_batch == 1,
        seconds=lambda s: 1.0 if s.precision == "fp16" else 9.0,
    )
    assert (chosen.precision, chosen.micro_batch) == ("fp32", 1)


def test_what_is_asked_for_is_kept_even_where_it_does_not_fit(monkeypatch):
    chosen, _ = search(monkeypatch, fits=lambda s: False, seconds=lambda s: 1 / s.micro_batch)
    assert chosen.micro_batch == 1  # the nearest to fitting

    wanted = Settings(precision="fp32", micro_batch=48, checkpointing="no")
    chosen, tried = search(monkeypatch, fits=lambda s: False, seconds=lambda s: 1.0, wanted=wanted)
    assert (chosen.precision, chosen.micro_batch, chosen.checkpointing) == ("fp32", 48, "no")
    assert tried == [("fp32", 48)]


def test_activations_are_computed_again_only_where_no_microbatch_fits_otherwise(monkeypatch):
    def fits(settings):
        return settings.checkpointing == "full" and settings.micro_batch <= 32

    wanted = Settings(precision="fp16")
    chosen, tried = search(monkeypatch, fits=fits, seconds=lambda s: 1.0, wanted=wanted)
    assert (chosen.checkpointing, chosen.micro_batch) == ("full", 32)
    assert [size for _, size in tried] == [64, 32, 16, 8, 4, 2, 1, 64, 32]
    chosen, _ = search(monkeypatch, fits=lambda s: s.micro_batch == 1, seconds=lambda s: 1.0, wanted=wanted)
    assert (chosen.checkpointing, chosen.micro_batch) == ("no", 1)


def test_a_model_without_blocks_is_planned_without_checkpointing(monkeypatch):
    def fits(settings):
        if settings.checkpointing == "full":
            raise QuestionError("no blocks")
        return False

    chosen, _ = search(monkeypatch, fits=fits, seconds=lambda s: 1.0)
    assert chosen.checkpointing == "no"
    with pytest.raises(QuestionError, match="no blocks"):
        search(monkeypatch, fits=fits, seconds=lambda s: 1.0, wanted=Settings(checkpointing="full"))


def test_a_microbatch_beyond_the_effective_batch_is_the_effective_batch(monkeypatch):
    chosen, _ = search(monkeypatch, fits=lambda s: True, seconds=lambda s: 1.0, wanted=Settings(micro_batch=1000))
    assert chosen.micro_batch == 64


def test_a_device_of_unknown_rates_is_planned_by_memory_alone(monkeypatch):
    chosen, _ = search(monkeypatch, fits=lambda s: s.micro_batch <= 16, seconds=lambda s: None)
    assert (chosen.precision, chosen.micro_batch) == ("fp32", 16)


@pytest.mark.parametrize(("name", "precisions"), [("t4", {"fp32", "fp16"}), ("l4", {"fp32", "fp16", "bf16"})])
def test_only_what_the_device_has_is_tried(monkeypatch, name, precisions):
    _, tried = search(monkeypatch, fits=lambda s: True, seconds=lambda s: 1.0, target=targets.find(name))
    assert {precision for precision, _ in tried} == precisions


def test_what_cudnn_may_try_widens_the_range() -> None:
    class Convolution:
        effective_batch = 4

        def model(self) -> torch.nn.Module:
            return torch.nn.Conv2d(3, 8, 3)

        def batch(self, size: int) -> torch.Tensor:
            return torch.zeros(size, 3, 64, 64)

        def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
            return model(batch).mean()

    plain = shoestring.estimate(Convolution(), on="t4").memory
    tried = shoestring.estimate(Convolution(), on="t4", cudnn_benchmark=True).memory
    assert tried.high_bytes > plain.high_bytes
    assert tried.peak_bytes == plain.peak_bytes
