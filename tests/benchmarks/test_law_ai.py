import pytest
import torch
from benchmarks.legal.law_ai import DIFFERS, OPTIONS, PUBLISHED, pooled_scores, summary

from shoestring.recipe.finding import choose
from shoestring_recipes.legal.metrics import scores

ROLES = ("Facts", "Argument", "Statute")


def test_pooled_scores_equal_scores_of_all_folds() -> None:
    torch.manual_seed(0)
    labels, predictions = torch.randint(3, (200,)), torch.randint(3, (200,))
    folds = [scores(predictions[part], labels[part], ROLES) for part in (slice(0, 70), slice(70, 200))]
    overall = scores(predictions, labels, ROLES)
    pooled = pooled_scores([fold["classes"] for fold in folds])
    assert pooled["macro_f1"] == pytest.approx(overall["macro_f1"])
    assert pooled["f1"] == pytest.approx({role: overall["classes"][role]["f1"] for role in ROLES})
    means = summary(folds)["macro_f1"]
    assert means["mean"] == pytest.approx((folds[0]["macro_f1"] + folds[1]["macro_f1"]) / 2)
    assert means["majority"] == pytest.approx(sum(fold["majority_macro_f1"] for fold in folds) / 2)


def test_options_are_valid_and_differences_are_listed() -> None:
    choose("legal", OPTIONS)
    assert PUBLISHED and DIFFERS
