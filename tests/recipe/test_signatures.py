"""Functions of a recipe that cannot be called with what they get."""

import pytest

from shoestring.base.errors import UsageError
from shoestring.recipe.parts import Parts
from shoestring.recipe.signatures import require_signatures


def recipe(**functions):
    return Parts.from_recipe(type("Mine", (), {name: staticmethod(value) for name, value in functions.items()})())


@pytest.mark.parametrize(
    ("functions", "problem"),
    [
        ({"after_update": lambda: None}, "after_update() is called as after_update(model)"),
        ({"after_update": lambda model, stage: None}, "after_update(model, stage) is called as after_update(model)"),
        ({"schedule": lambda update: 1.0}, "called as schedule(update, updates_per_epoch, total_updates)"),
    ],
)
def test_other_parameters_are_named(functions, problem):
    with pytest.raises(UsageError, match="other parameters than they are called with") as error:
        require_signatures(recipe(**functions))
    assert problem in error.value.problems[0]


def test_what_can_be_called_passes():
    updates = lambda update, per_epoch, total, power=1: 1.0  # noqa: E731
    require_signatures(recipe(after_update=lambda model, rate=0.1: None, schedule=updates))
    require_signatures(recipe(after_update=lambda model, *, stage: None, stage=updates, schedule=max))
    require_signatures(recipe())
