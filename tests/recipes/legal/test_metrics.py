import pytest
import torch
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_f1_score

from shoestring.recipes.legal.metrics import scores

ROLES = ("None", "Facts", "Issue", "Reasoning")
# Facts before None in the alphabet: a report that sorts its names puts the wrong ones to the numbers.
TRUTH = torch.tensor([1, 1, 1, 1, 0, 0, 2, 2])
NAMED = torch.tensor([1, 1, 1, 0, 0, 1, 2, 1])


def test_counted_by_hand() -> None:
    found = scores(NAMED, TRUTH, ROLES)
    # Facts: 3 right of 5 named and of 4 there, 6/9; None: 1 of 2 and of 2, 2/4; Issue: 1 of 1 and of 2, 2/3.
    assert found["classes"]["Facts"] == pytest.approx(
        {"true": 4, "predicted": 5, "precision": 3 / 5, "recall": 3 / 4, "f1": 6 / 9}
    )
    assert found["classes"]["None"]["f1"] == pytest.approx(1 / 2)
    assert found["classes"]["Issue"]["f1"] == pytest.approx(2 / 3)
    assert found["classes"]["Reasoning"] == {"true": 0, "predicted": 0, "precision": 0, "recall": 0, "f1": 0}
    assert found["accuracy"] == pytest.approx(5 / 8)
    assert found["macro_f1"] == pytest.approx((2 / 3 + 1 / 2 + 2 / 3) / 3)
    assert found["weighted_f1"] == pytest.approx((4 * 2 / 3 + 2 * 1 / 2 + 2 * 2 / 3) / 8)


def test_the_baseline_always_names_the_most_frequent() -> None:
    found = scores(NAMED, TRUTH, ROLES)
    assert found["majority_accuracy"] == pytest.approx(1 / 2)
    assert found["majority_weighted_f1"] == pytest.approx(1 / 2 * 2 / 3)
    assert found["majority_macro_f1"] == pytest.approx(2 / 3 / 3)


def test_they_are_those_of_torchmetrics() -> None:
    torch.manual_seed(0)
    truth, named = torch.randint(3, (500,)), torch.randint(4, (500,))
    found = scores(named, truth, ROLES)
    assert found["accuracy"] == pytest.approx(float(multiclass_accuracy(named, truth, 4, average="micro")))
    for average in ("weighted", "macro"):
        expected = float(multiclass_f1_score(named, truth, 4, average=average))
        assert found[f"{average}_f1"] == pytest.approx(expected)
