"""Command lines: `kaggle start` for a machine of Kaggle; only a recipe that takes data is given some."""

from pathlib import Path

import pytest

from shoestring.hardware.targets import find as find_target
from shoestring.hardware.targets import with_limits
from shoestring.planning import commands
from shoestring.planning.commands import plan_command, training_command
from shoestring.recipe.finding import choose, choose_for_plan

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


def test_paths_are_those_of_datasets_where_a_session_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = {"data": "me/tiles", "table": "me/tables:data.csv", "rows": 500}
    loaded, settings = choose_for_plan("cloud", values)
    command = training_command(loaded, settings, find_target("kaggle-t4x2"))
    assert "--set data=me/tiles --set table=me/tables:data.csv" in command and "--data" not in command
    command = training_command(loaded, settings, find_target("t4"))
    assert "--set data=PATH" in command and "--set table=PATH" in command and "me/" not in command
    (tmp_path / "tiles").mkdir()
    loaded, settings = choose_for_plan("cloud", {"data": "tiles", "table": "data.csv"})
    command = training_command(loaded, settings, find_target("kaggle-t4x2"))
    assert "--set data=OWNER/DATASET:tiles --set table=OWNER/DATASET:data.csv" in command


@pytest.mark.parametrize("name", ["rtx3060", "kaggle-t4"])
def test_the_machines_memory_is_told_to_a_plan_alone(name):
    target = with_limits(find_target(name), ram_bytes=16 * 10**9)
    assert target.platform.ram_bytes == 16 * 10**9
    loaded, settings = choose("temporal", {})
    assert f"--on {name} --ram 16GB" in plan_command(loaded, settings, target, {})
    assert "--ram" not in training_command(loaded, settings, target)


def test_on_kaggle_itself_the_command_trains(monkeypatch):
    target = find_target("kaggle-t4")
    monkeypatch.setattr(commands, "platform_here", lambda: target.platform)
    assert training_command(*choose("temporal", {}), target).startswith("shoestring train temporal ")
