"""The choice between contiguous tensors and channels_last, over fake costs."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from shoestring.base.errors import TraceError, UsageError
from shoestring.base.settings import Settings
from shoestring.hardware import targets
from shoestring.planning.gpus import search
from shoestring.planning.memory_format import memory_format_reasons
from shoestring.planning.trace.convolution import ConvolutionShape
from shoestring.planning.trace.record import Op
from shoestring.recipe.adaptation import Adaptation
from shoestring.recipe.parts import Parts
from tests.planning.fake_candidates import GIB, T4, FakeCandidates, bytes_per_sample, default_seconds

DEFAULT = Settings()


def seconds(settings, speedup=1.6):
    return default_seconds(settings) / (speedup if settings.memory_format == "channels_last" else 1)


def make_candidates(cost=seconds, bytes_of=None, convolutions=0.3, target=T4):
    candidates = FakeCandidates(bytes_of=bytes_of or bytes_per_sample(0.1), seconds=cost, target=target)
    candidates.convolutions = convolutions
    return candidates


def choose(candidates, requested=DEFAULT):
    """Return the chosen settings, the reasons for their format, and how many candidates have channels_last."""
    ranked = search(candidates, requested)
    reasons = list(memory_format_reasons(ranked, requested, candidates.channels_last_error))
    tried = sum(settings.memory_format == "channels_last" for settings in candidates.evaluated)
    return ranked[0].settings, reasons, tried


def test_channels_last_is_chosen_if_it_is_faster():
    settings, (reason,), tried = choose(make_candidates())
    assert (settings.memory_format, settings.precision, tried) == ("channels_last", "fp16", 1)
    assert reason.startswith("memory_format channels_last: 60% faster, because tensor cores")


def test_a_format_that_is_not_faster_is_not_chosen():
    for speedup in (1.0, 1.01, 0.5):
        settings, reasons, tried = choose(make_candidates(lambda s, speedup=speedup: seconds(s, speedup)))
        assert (settings.memory_format, reasons, tried) == ("contiguous", [], 1)


def test_a_format_that_does_not_fit_is_not_chosen():
    candidates = make_candidates(bytes_of=lambda s: 99 * GIB if s.memory_format == "channels_last" else GIB)
    assert choose(candidates)[0].memory_format == "contiguous"


def test_16_bits_that_are_only_faster_with_the_format_are_chosen():
    def cost(settings):
        return {"fp32": 0.6, "fp16": 0.7}[settings.precision] / (2 if settings.memory_format == "channels_last" else 1)

    settings, _, _ = choose(make_candidates(cost))
    assert (settings.precision, settings.memory_format) == ("fp16", "channels_last")


@pytest.mark.parametrize(
    ("facts", "requested"),
    [
        ({"convolutions": 0.0}, DEFAULT),
        ({"convolutions": 0.1}, DEFAULT),  # patches of a vision transformer
        ({"target": targets.find("p100")}, DEFAULT),
        ({}, Settings(precision="fp32")),
        ({}, Settings(memory_format="contiguous")),
        ({"target": targets.find("kaggle-t4x2")}, Settings(sharding="zero3", precision="fp16")),
    ],
)
def test_it_is_not_tried_where_it_cannot_gain(facts, requested):
    settings, reasons, tried = choose(make_candidates(**facts), requested)
    assert (settings.memory_format, reasons, tried) == ("contiguous", [], 0)


def test_it_is_not_tried_if_the_recipe_converts_images_itself():
    shape = (1, 64, 8, 27, 3, 3, 8, 8, 1, 1, 1)
    assert ConvolutionShape(*shape).channels_last
    candidates = make_candidates()
    evaluate = candidates.evaluate

    def evaluate_converted(settings):
        candidate = evaluate(settings)
        events = [replace(event, shape=shape) if isinstance(event, Op) else event for event in candidate.trace.events]
        return replace(candidate, trace=replace(candidate.trace, events=tuple(events)))

    candidates.evaluate = evaluate_converted
    settings, reasons, tried = choose(candidates)
    assert (settings.memory_format, reasons, tried) == ("contiguous", [], 0)


def test_it_is_not_tried_where_it_cannot_train():
    eight_bit = make_candidates()
    eight_bit.loaded.adaptation = Adaptation(optimizer_states="8bit")
    by_library = make_candidates()
    by_library.loaded.parts = Parts.from_recipe(SimpleNamespace(trainer=print))
    by_library.loaded.name = "mine"
    assert [choose(candidates)[2] for candidates in (eight_bit, by_library)] == [0, 0]
    with pytest.raises(UsageError) as error:
        choose(by_library, Settings(memory_format="channels_last"))
    assert "memory_format=channels_last: mine is trained by a library" in error.value.problems[0]


def test_a_requested_format_is_not_compared():
    settings, reasons, tried = choose(make_candidates(), Settings(memory_format="channels_last", precision="fp16"))
    assert (settings.memory_format, reasons, settings.precision) == ("channels_last", [], "fp16")
    assert tried > 1


def test_several_gpus_are_compared_with_one_in_the_same_format():
    candidates = make_candidates(target=targets.find("kaggle-t4x2"))
    settings, _, _ = choose(candidates)
    assert settings.memory_format == "channels_last"
    assert {s.memory_format for s in candidates.evaluated if s.gpus == 1} == {"channels_last"}
    assert sum(s.memory_format == "channels_last" for s in candidates.evaluated if s.gpus == 2) == 1


@pytest.mark.parametrize("kind", [TraceError, UsageError])
def test_a_recipe_that_cannot_be_traced_with_it_stays_contiguous(kind):
    def cost(settings):
        if settings.memory_format == "channels_last":
            raise kind("view size is not compatible")
        return default_seconds(settings)

    settings, (reason,), _ = choose(make_candidates(cost))
    assert settings.memory_format == "contiguous"
    assert reason == (
        "memory_format contiguous: the recipe does not support channels_last: view size is not compatible"
    )
