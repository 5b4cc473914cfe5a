"""Command lines for data that are not here: only a recipe that takes data is given some."""

from pathlib import Path

import pytest

from shoestring.hardware.targets import find as find_target
from shoestring.plan.commands import training_command
from shoestring.recipe.finding import choose

MINE = str(Path(__file__).parents[1] / "mine.py")


@pytest.mark.parametrize(("recipe", "takes_data"), [("legal", True), (MINE, False)])
def test_the_commands_have_data_if_the_recipe_takes_them(recipe, takes_data):
    loaded, settings = choose(recipe, {"rows": 500})
    target = find_target("kaggle-t4x2")
    command = training_command(loaded, settings, target, verb="kaggle start")
    assert "--set rows=500" in command and ("--data OWNER/DATASET" in command) == takes_data
    command = training_command(loaded, settings, target)
    assert "rows" not in command and ("--set data=PATH" in command) == takes_data
