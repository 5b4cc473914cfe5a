import math

import pytest

from shoestring.recipes.vqa.curriculum import rate, stage


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
def test_the_stages_are_the_published_ones(epoch: int, name: str, weights: tuple[float, float, float]) -> None:
    found = stage(epoch, 100)
    assert found.name == name
    assert (found.format, found.answer, found.reasoning) == pytest.approx(weights, abs=1e-12)


def test_a_shorter_run_goes_through_the_same_shares() -> None:
    assert [stage(epoch, 10).name[:6] for epoch in range(10)] == ["ANSWER"] * 2 + ["FORMAT"] + ["REASON"] * 7
    assert [stage(epoch, 20) for epoch in range(20)] == [stage(5 * epoch, 100) for epoch in range(20)]


def test_the_weights_always_sum_to_one() -> None:
    for epochs in (1, 3, 7, 100):
        for epoch in range(epochs):
            found = stage(epoch, epochs)
            assert found.format + found.answer + found.reasoning == pytest.approx(1)


@pytest.mark.parametrize("restart", [0, 15, 45])
def test_the_rate_restarts_after_15_and_45_epochs(restart: float) -> None:
    assert rate(restart, 100, 1e-5) == 1
    if restart:
        assert rate(restart - 1e-3, 100, 1e-5) == pytest.approx(1e-7 / 1e-5, rel=1e-3)


def test_between_restarts_it_is_a_cosine_down_to_the_published_rate() -> None:
    lowest = 1e-2
    for since, period, epoch in ((5, 15, 5), (10, 30, 25), (30, 60, 75)):
        expected = lowest + (1 - lowest) * 0.5 * (1 + math.cos(math.pi * since / period))
        assert rate(epoch, 100, 1e-5) == pytest.approx(expected)
        assert rate(epoch / 10, 10, 1e-5) == pytest.approx(expected)
