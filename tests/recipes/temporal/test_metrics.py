import pytest
import torch

from shoestring_recipes.temporal.metrics import scores

TRUE = torch.tensor([0, 0, 0, 1, 2, 2])
PREDICTED = torch.tensor([0, 0, 1, 1, 2, 0])


def test_scores_by_hand() -> None:
    metrics = scores(PREDICTED, TRUE, horizon=4)
    # Correct of true and of predicted: down 2 of 3 and 3, flat 1 of 1 and 2, up 1 of 2 and 1.
    assert metrics["accuracy"] == pytest.approx(4 / 6)
    assert metrics["macro_f1"] == pytest.approx((4 / 6 + 2 / 3 + 2 / 3) / 3)
    # Always predicting down is correct for 3 of 3 true and 6 predicted; the other classes have F1 0.
    assert metrics["majority_accuracy"] == pytest.approx(3 / 6)
    assert metrics["majority_macro_f1"] == pytest.approx((6 / 9) / 3)
    assert metrics["classes"] == {
        "down": {"true": 3, "predicted": 3},
        "flat": {"true": 1, "predicted": 2},
        "up": {"true": 2, "predicted": 1},
    }


def test_an_absent_class_is_left_out_of_macro_f1() -> None:
    assert scores(torch.tensor([0, 2]), torch.tensor([0, 2]), horizon=8)["macro_f1"] == 1


def test_error_of_independent_samples_is_binomial():
    torch.manual_seed(0)
    labels = torch.randint(3, (5000,))
    predicted = torch.where(torch.rand(5000) < 0.6, labels, (labels + 1) % 3)
    metrics = scores(predicted, labels, horizon=1)
    assert metrics["accuracy_error"] == pytest.approx((0.6 * 0.4 / 5000) ** 0.5, rel=0.25)


def test_repeated_samples_do_not_reduce_the_error():
    torch.manual_seed(0)
    labels = torch.randint(3, (48,))
    predicted = torch.where(torch.rand(48) < 0.6, labels, (labels + 1) % 3)
    single = scores(predicted, labels, horizon=1)
    repeated = scores(predicted.repeat_interleave(8), labels.repeat_interleave(8), horizon=8)
    assert repeated["accuracy_error"] == pytest.approx(single["accuracy_error"])
    assert repeated["macro_f1_error"] == pytest.approx(single["macro_f1_error"])
    naive = scores(predicted.repeat_interleave(8), labels.repeat_interleave(8), horizon=1)
    assert naive["accuracy_error"] < single["accuracy_error"]


def test_too_few_samples_have_no_error():
    assert "accuracy_error" not in scores(TRUE, TRUE, horizon=4)
