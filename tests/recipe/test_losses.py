"""The loss of a recipe with stages, where no update gives it one."""

import pytest
import torch

from shoestring.base.errors import UsageError
from shoestring.recipe.losses import loss_without_stage, losses_by_stage, scalar_loss


class Staged:
    stage = staticmethod(lambda *_: "d")

    def loss(self, model, batch, stage):
        return stage


class Optional(Staged):
    stages = ("d", "g")

    def loss(self, model, batch, stage="none"):
        return stage


def values(recipe):
    return [loss(None, None) for loss in losses_by_stage(recipe)]


def test_declared_stages():
    recipe = Optional()
    assert values(recipe) == ["d", "g"] and loss_without_stage(recipe, "an evaluation", "")(None, None) == "none"
    recipe.stages = None
    assert values(recipe) == ["none"]
    recipe.stage, recipe.stages = None, (3, 4, 6, 3)  # an attribute of the recipe's own
    assert values(recipe) == ["none"]


@pytest.mark.parametrize("stages", ["dg", (), {"d"}])
def test_undeclared_stages_are_refused(stages):
    with pytest.raises(UsageError, match=r"estimates cannot give it[^~]*stages = \(\"d\", \"g\"\)"):
        losses_by_stage(Staged())
    recipe = Staged()
    recipe.stages = stages
    with pytest.raises(UsageError, match="not a sequence of the values"):
        losses_by_stage(recipe)
    recipe.stage = None
    with pytest.raises(UsageError, match="and write stage"):
        losses_by_stage(recipe)
    with pytest.raises(UsageError, match="write evaluate"):
        loss_without_stage(recipe, "an evaluation", "write evaluate")


def test_loss_of_each_sample_is_refused():
    with pytest.raises(UsageError, match=r"loss\(\) returned \(8,\)"):
        scalar_loss(torch.zeros(8))
