"""Command lines: `kaggle start` for a machine of Kaggle; only a recipe that takes data is given some."""

from pathlib import Path

import pytest

from shoestring.hardware.targets import find as find_target
from shoestring.plan import commands
from shoestring.plan.commands import training_command
from shoestring.recipe.finding import choose

MINE = str(Path(__file__).parents[1] / "mine.py")


@pytest.mark.parametrize(("recipe", "takes_data"), [("legal", True), (MINE, False)])
def test_the_commands_have_data_if_the_recipe_takes_them(recipe, takes_data):
    loaded, settings = choose(recipe, {"rows": 500})
    target = find_target("kaggle-t4x2")
    command = training_command(loaded, settings, target)
    assert command.startswith("shoestring kaggle start ") and "--set rows=500" in command
    assert ("--data OWNER/DATASET" in command) == takes_data
    command = training_command(loaded, settings, find_target("t4"))
    assert "rows" not in command and ("--set data=PATH" in command) == takes_data


def test_on_kaggle_itself_the_command_trains(monkeypatch):
    target = find_target("kaggle-t4")
    monkeypatch.setattr(commands, "platform_here", lambda: target.platform)
    assert training_command(*choose("temporal", {}), target).startswith("shoestring train temporal ")
