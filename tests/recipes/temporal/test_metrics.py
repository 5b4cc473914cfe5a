import pytest
import torch

from shoestring.recipes.temporal.metrics import scores

TRUE = torch.tensor([0, 0, 0, 1, 2, 2])
PREDICTED = torch.tensor([0, 0, 1, 1, 2, 0])


def test_scores_by_hand() -> None:
    found = scores(PREDICTED, TRUE, majority=2)
    # down: 2 right of 3 there and 3 named; flat: 1 of 1 and 2; up: 1 of 2 and 1
    assert found["accuracy"] == pytest.approx(4 / 6)
    assert found["macro_f1"] == pytest.approx((4 / 6 + 2 / 3 + 2 / 3) / 3)
    # always up: 2 right of 2 there and 6 named; the others never
    assert found["majority_accuracy"] == pytest.approx(2 / 6)
    assert found["majority_macro_f1"] == pytest.approx((4 / 8) / 3)
    assert found["classes"] == {
        "down": {"true": 3, "predicted": 3},
        "flat": {"true": 1, "predicted": 2},
        "up": {"true": 2, "predicted": 1},
    }


def test_a_class_that_is_nowhere_does_not_count() -> None:
    assert scores(torch.tensor([0, 2]), torch.tensor([0, 2]), majority=0)["macro_f1"] == 1
