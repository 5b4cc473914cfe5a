import pytest
import torch
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_f1_score

from shoestring_recipes.legal.metrics import scores

ROLES = ("None", "Facts", "Issue", "Reasoning")
# The roles are not in alphabetical order, so sorting the names would assign them to the wrong classes.
TRUTH = torch.tensor([1, 1, 1, 1, 0, 0, 2, 2])
PREDICTED = torch.tensor([1, 1, 1, 0, 0, 1, 2, 1])


def test_metrics_by_hand() -> None:
    metrics = scores(PREDICTED, TRUTH, ROLES)
    # Correct of predicted and of true: Facts 3 of 5 and 4, F1 6/9; None 1 of 2 and 2, 2/4; Issue 1 of 1 and 2, 2/3.
    assert metrics["classes"]["Facts"] == pytest.approx(
        {"true": 4, "predicted": 5, "precision": 3 / 5, "recall": 3 / 4, "f1": 6 / 9}
    )
    assert metrics["classes"]["None"]["f1"] == pytest.approx(1 / 2)
    assert metrics["classes"]["Issue"]["f1"] == pytest.approx(2 / 3)
    assert metrics["classes"]["Reasoning"] == {"true": 0, "predicted": 0, "precision": 0, "recall": 0, "f1": 0}
    assert metrics["accuracy"] == pytest.approx(5 / 8)
    assert metrics["macro_f1"] == pytest.approx((2 / 3 + 1 / 2 + 2 / 3) / 3)
    assert metrics["weighted_f1"] == pytest.approx((4 * 2 / 3 + 2 * 1 / 2 + 2 * 2 / 3) / 8)


def test_the_baseline_predicts_the_most_frequent_role() -> None:
    metrics = scores(PREDICTED, TRUTH, ROLES)
    assert metrics["majority_accuracy"] == pytest.approx(1 / 2)
    assert metrics["majority_weighted_f1"] == pytest.approx(1 / 2 * 2 / 3)
    assert metrics["majority_macro_f1"] == pytest.approx(2 / 3 / 3)


def test_metrics_equal_torchmetrics() -> None:
    torch.manual_seed(0)
    truth, predicted = torch.randint(3, (500,)), torch.randint(4, (500,))
    metrics = scores(predicted, truth, ROLES)
    assert metrics["accuracy"] == pytest.approx(float(multiclass_accuracy(predicted, truth, 4, average="micro")))
    for average in ("weighted", "macro"):
        expected = float(multiclass_f1_score(predicted, truth, 4, average=average))
        assert metrics[f"{average}_f1"] == pytest.approx(expected)
