import math

import pytest

from shoestring_recipes.vqa import VQA
from shoestring_recipes.vqa.curriculum import rate_factor, stage_at


@pytest.mark.parametrize(
    ("epoch", "name", "weights"),
    [
        (0, "ANSWER_FOCUS", (0.60, 0.35, 0.05)),
        (14, "ANSWER_FOCUS", (0.60, 0.35, 0.05)),
        (15, "FORMAT_LEARNING", (0.50, 0.30, 0.20)),
        (29, "FORMAT_LEARNING", (0.50, 0.30, 0.20)),
        (30, "REASONING_QUALITY", (0.30, 0.25, 0.45)),
        (65, "REASONING_QUALITY", (0.275, 0.20, 0.525)),
        (99, "REASONING_QUALITY", (0.25 + 0.05 / 70, 0.15 + 0.10 / 70, 0.60 - 0.15 / 70)),
    ],
)
def test_stages_match_the_published_ones(epoch: int, name: str, weights: tuple[float, float, float]) -> None:
    stage = stage_at(epoch, 100)
    assert stage.name == name
    assert (stage.format, stage.answer, stage.reasoning) == pytest.approx(weights, abs=1e-12)


def test_shorter_runs_scale_the_stages() -> None:
    assert [stage_at(epoch, 10).name[:6] for epoch in range(10)] == ["ANSWER"] * 2 + ["FORMAT"] + ["REASON"] * 7
    assert [stage_at(epoch, 20) for epoch in range(20)] == [stage_at(5 * epoch, 100) for epoch in range(20)]


def test_the_weights_always_sum_to_one() -> None:
    for epochs in (1, 3, 7, 100):
        for epoch in range(epochs):
            stage = stage_at(epoch, epochs)
            assert stage.format + stage.answer + stage.reasoning == pytest.approx(1)


@pytest.mark.parametrize("restart", [0, 15, 45])
def test_the_rate_restarts_after_15_and_45_epochs(restart: float) -> None:
    assert rate_factor(restart, 100, 1e-5) == 1
    if restart:
        assert rate_factor(restart - 1e-3, 100, 1e-5) == pytest.approx(1e-7 / 1e-5, rel=1e-3)


def test_rate_is_a_cosine_between_restarts() -> None:
    lowest = 1e-2
    for elapsed, period, epoch in ((5, 15, 5), (10, 30, 25), (30, 60, 75)):
        expected = lowest + (1 - lowest) * 0.5 * (1 + math.cos(math.pi * elapsed / period))
        assert rate_factor(epoch, 100, 1e-5) == pytest.approx(expected)
        assert rate_factor(epoch / 10, 10, 1e-5) == pytest.approx(expected)


def test_run_may_end_within_its_first_epoch():
    recipe = VQA()
    assert recipe.stage(4, updates_per_epoch=10, total_updates=5).name == "ANSWER_FOCUS"
    assert recipe.schedule(0, updates_per_epoch=10, total_updates=5) == 1
    assert recipe.schedule(2, 10, 5) == recipe.schedule(40, 10, 100)
