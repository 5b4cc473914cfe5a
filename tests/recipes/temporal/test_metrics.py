import pytest
import torch

from shoestring.recipes.temporal.metrics import scores

TRUE = torch.tensor([0, 0, 0, 1, 2, 2])
PREDICTED = torch.tensor([0, 0, 1, 1, 2, 0])


def test_scores_by_hand() -> None:
    found = scores(PREDICTED, TRUE, horizon=4)
    # down: 2 right of 3 there and 3 named; flat: 1 of 1 and 2; up: 1 of 2 and 1
    assert found["accuracy"] == pytest.approx(4 / 6)
    assert found["macro_f1"] == pytest.approx((4 / 6 + 2 / 3 + 2 / 3) / 3)
    # always down: 3 right of 3 there and 6 named; the others never
    assert found["majority_accuracy"] == pytest.approx(3 / 6)
    assert found["majority_macro_f1"] == pytest.approx((6 / 9) / 3)
    assert found["classes"] == {
        "down": {"true": 3, "predicted": 3},
        "flat": {"true": 1, "predicted": 2},
        "up": {"true": 2, "predicted": 1},
    }


def test_a_class_that_is_nowhere_does_not_count() -> None:
    assert scores(torch.tensor([0, 2]), torch.tensor([0, 2]), horizon=8)["macro_f1"] == 1


def test_the_error_of_independent_samples_is_the_binomial_one():
    torch.manual_seed(0)
    labels = torch.randint(3, (5000,))
    predicted = torch.where(torch.rand(5000) < 0.6, labels, (labels + 1) % 3)
    found = scores(predicted, labels, horizon=1)
    assert found["accuracy_error"] == pytest.approx((0.6 * 0.4 / 5000) ** 0.5, rel=0.25)


def test_samples_that_repeat_each_other_have_the_error_of_those_that_do_not():
    torch.manual_seed(0)
    labels = torch.randint(3, (48,))
    predicted = torch.where(torch.rand(48) < 0.6, labels, (labels + 1) % 3)
    alone = scores(predicted, labels, horizon=1)
    repeated = scores(predicted.repeat_interleave(8), labels.repeat_interleave(8), horizon=8)
    assert repeated["accuracy_error"] == pytest.approx(alone["accuracy_error"])
    assert repeated["macro_f1_error"] == pytest.approx(alone["macro_f1_error"])
    naive = scores(predicted.repeat_interleave(8), labels.repeat_interleave(8), horizon=1)
    assert naive["accuracy_error"] < alone["accuracy_error"]


def test_too_few_samples_have_no_error():
    assert "accuracy_error" not in scores(TRUE, TRUE, horizon=4)
