import pytest
import torch
from benchmarks.legal.law_ai import DIFFERS, OPTIONS, PUBLISHED, summary, together

from shoestring.recipe.finding import choose
from shoestring.recipes.legal.metrics import scores

ROLES = ("Facts", "Argument", "Statute")


def test_roles_are_counted_over_all_folds_as_if_they_were_one() -> None:
    torch.manual_seed(0)
    truth, named = torch.randint(3, (200,)), torch.randint(3, (200,))
    folds = [scores(named[part], truth[part], ROLES) for part in (slice(0, 70), slice(70, 200))]
    whole = scores(named, truth, ROLES)
    found = together([fold["classes"] for fold in folds])
    assert found["macro_f1"] == pytest.approx(whole["macro_f1"])
    assert found["f1"] == pytest.approx({role: whole["classes"][role]["f1"] for role in ROLES})
    means = summary(folds)["macro_f1"]
    assert means["mean"] == pytest.approx((folds[0]["macro_f1"] + folds[1]["macro_f1"]) / 2)
    assert means["majority"] == pytest.approx(sum(fold["majority_macro_f1"] for fold in folds) / 2)


def test_its_options_are_understood_and_what_differs_is_said() -> None:
    choose("legal", OPTIONS)
    assert PUBLISHED and DIFFERS
