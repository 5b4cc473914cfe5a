"""The recipe files that a run may execute although no command names them."""

import json
import multiprocessing
import os
import stat

import pytest

from shoestring.base.errors import UsageError
from shoestring.recipe.source import RecipeSource
from shoestring.training.run_directory import trust


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "shoestring" / "trusted.json"


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "mine.py").write_text("import helper")
    (tmp_path / "helper.py").write_text("VALUE = 1")
    return tmp_path / "mine.py"


def is_trusted(path):
    try:
        contents = trust.verified_contents(path, "the run")
    except UsageError:
        return False
    assert contents[path.name] == path.read_bytes()
    return True


def test_file_and_its_imports_are_trusted_until_one_of_them_changes(recipe, state):
    with pytest.raises(UsageError, match=str(recipe)) as error:
        trust.verified_contents(recipe, "the run")
    assert f"name it: {recipe}" in error.value.hint
    assert trust.remember(RecipeSource(recipe)) == ""
    assert is_trusted(recipe)
    for name in ("mine.py", "helper.py"):
        text = (recipe.parent / name).read_text()
        (recipe.parent / name).write_text(text + "\n")
        with pytest.raises(UsageError) as error:
            trust.verified_contents(recipe, "the run")
        assert error.value.problems == (f"changed since it was last trained with: {name}",)
        (recipe.parent / name).write_text(text)
    (recipe.parent / "helper.py").unlink()
    assert not is_trusted(recipe)


def test_file_is_private_and_bounded(recipe, state, monkeypatch):
    monkeypatch.setattr(trust, "_MAX_RECIPES", 3)
    for number in range(5):
        recipe.write_text(f"VALUE = {number}")
        trust.remember(RecipeSource(recipe))
    assert len(json.loads(state.read_text())["recipes"]) == 3
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (state, state.parent)]
    assert modes == [0o600, 0o700]
    assert [path.name for path in state.parent.iterdir()] == ["trusted.json"]
    recipe.write_text("VALUE = 1")
    assert not is_trusted(recipe)
    recipe.write_text("VALUE = 2")
    assert is_trusted(recipe)
    monkeypatch.setattr(trust, "_MAX_BYTES", 500)
    trust.remember(RecipeSource(recipe))
    assert state.stat().st_size < 500


@pytest.mark.parametrize("damage", ["text", "entry", "format", "writable", "folder", "link"])
def test_damaged_file_trusts_nothing_and_is_replaced(recipe, state, damage):
    trust.remember(RecipeSource(recipe))
    if damage == "writable":
        state.chmod(0o666)
    elif damage == "folder":
        state.parent.chmod(0o777)
    elif damage == "link":
        state.rename(recipe.parent / "trusted.json")
        state.symlink_to(recipe.parent / "trusted.json")
    else:
        values = {"text": "{", "entry": {"format": 1, "recipes": [{"path": 1}]}, "format": {"format": 9, "recipes": []}}
        state.write_text(values[damage] if damage == "text" else json.dumps(values[damage]))
    with pytest.raises(UsageError) as error:
        trust.verified_contents(recipe, "the run")
    assert "no file is trusted" in error.value.problems[0]
    assert trust.remember(RecipeSource(recipe)) == ""
    assert is_trusted(recipe)
    assert stat.S_ISREG(state.lstat().st_mode)


def test_file_that_cannot_be_written_is_a_note(recipe, state):
    state.parent.parent.write_text("")
    note = trust.remember(RecipeSource(recipe))
    assert str(recipe) in note and "--recipe" in note
    assert not is_trusted(recipe)


def test_relative_variable_is_ignored(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert trust.trusted_file() == tmp_path / ".local" / "state" / "shoestring" / "trusted.json"


def remember_many(folder, number):
    for count in range(10):
        path = folder / f"recipe{number}_{count}.py"
        path.write_text(f"VALUE = {number}, {count}")
        assert trust.remember(RecipeSource(path)) == ""


def test_concurrent_writers_lose_nothing(state, tmp_path):
    state.parent.mkdir(parents=True)
    (state.parent / f".trusted.json.{os.getpid() + 1}").write_text("of a killed writer")
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=remember_many, args=(tmp_path, number)) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert all(writer.exitcode == 0 for writer in writers)
    assert len(json.loads(state.read_text())["recipes"]) == 30
    assert [path.name for path in state.parent.iterdir()] == ["trusted.json"]
