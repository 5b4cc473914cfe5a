import dataclasses

import pytest

from shoestring.errors import QuestionError
from shoestring.recipe import Adaptation, built_in, datasets, find, live, load, loss_at, updates_per_epoch

MINE = """
class {name}:
    epochs: int = 5
    def model(self): ...
    def batch(self, size): ...
    def loss(self, model, batch): ...
    def epochs_seen(self): return self.epochs
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE.format(name="Mine"))
    return path


def test_a_file_is_found_with_its_defaults(mine):
    found = find(str(mine))
    assert (found.name, found.path) == ("mine.py", mine)
    adapted = dataclasses.asdict(Adaptation())
    assert dict(found.options) == {"epochs": 5, "effective_batch": 32, "seed": 0, "subset": None, **adapted}
    assert len(found.digest) == 64


def test_options_reach_the_recipe_itself(mine):
    found = load(str(mine), {"epochs": "7", "effective_batch": 8})
    assert (found.epochs, found.effective_batch) == (7, 8)
    assert found.recipe.epochs_seen() == 7
    assert find(str(mine)).epochs == 5  # the file's own default stays


def test_the_reference_finds_the_same_recipe_from_anywhere(mine, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for reference in ("mine.py", "mine.py:Mine"):
        found = find(reference)
        monkeypatch.chdir("/")
        again = find(found.reference)
        assert (again.digest, again.name) == (found.digest, found.name)
        monkeypatch.chdir(tmp_path)


def test_one_of_several_is_named(tmp_path):
    path = tmp_path / "two.py"
    path.write_text(MINE.format(name="One") + MINE.format(name="Two"))
    with pytest.raises(QuestionError, match="2 recipes: One, Two"):
        find(str(path))
    assert type(find(f"{path}:Two").recipe).__name__ == "Two"
    with pytest.raises(QuestionError, match="did you mean Two"):
        find(f"{path}:Tow")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "has no recipe"),
        ("class Half:\n    def model(self): ...", "has no recipe"),
        ("import nothing_like_this", "ModuleNotFoundError"),
        ("def (", "SyntaxError"),
    ],
)
def test_a_file_without_a_usable_recipe_is_one_error(tmp_path, text, words):
    path = tmp_path / "odd.py"
    path.write_text(text)
    with pytest.raises(QuestionError, match=words):
        find(str(path))


def test_an_imported_recipe_is_not_the_files_own(tmp_path, mine):
    path = tmp_path / "uses.py"
    path.write_text("from shoestring.recipes.temporal import Temporal\n" + MINE.format(name="Own"))
    assert type(find(str(path)).recipe).__name__ == "Own"


@pytest.mark.parametrize("reference", ["tempral", "nope.py", "."])
def test_what_is_not_there_is_one_error(reference):
    with pytest.raises(QuestionError, match="there is no"):
        find(reference)


def test_an_object_with_the_three_methods_is_a_recipe():
    class Mine:
        effective_batch = 4

        def model(self): ...
        def batch(self, size): ...
        def loss(self, model, batch): ...

    found = live(Mine())
    assert (found.name, found.is_live, found.reference, found.effective_batch) == ("Mine", True, "", 4)


def test_an_object_that_lacks_one_is_told():
    with pytest.raises(QuestionError, match="lacks model, batch, loss"):
        live(object())


def test_values_that_cannot_be_are_refused(mine):
    with pytest.raises(QuestionError) as caught:
        load(str(mine), {"epochs": 0, "effective_batch": -1})
    assert len(caught.value.problems) == 2


class WithData:
    def __init__(self, parts):
        self.data = lambda: parts


def test_data_is_parts_of_which_train_is_needed():
    assert list(datasets(WithData([1, 2]))) == ["train"]
    assert list(datasets(WithData({"train": [1], "test": [2]}))) == ["train", "test"]


@pytest.mark.parametrize("parts", [{"validation": [1]}, {"train": [1], "dev": [1]}, {"train": []}, []])
def test_other_parts_and_none_are_refused(parts):
    with pytest.raises(QuestionError):
        datasets(WithData(parts))


def test_without_data_it_cannot_be_trained():
    with pytest.raises(QuestionError, match="it has no data"):
        datasets(object())


def test_updates_per_epoch_count_the_rest_but_no_lone_sample():
    assert [updates_per_epoch(samples, 4) for samples in (1, 4, 5, 6, 8, 9)] == [1, 1, 1, 2, 2, 2]
    assert updates_per_epoch(3, 1) == 3


def test_the_loss_of_an_update_is_that_of_its_stage():
    class Staged:
        def loss(self, model, batch, stage="none"):
            return stage

    assert loss_at(Staged(), 7, 4, 12)(None, None) == "none"
    Staged.stage = lambda self, *place: place
    assert loss_at(Staged(), 7, 4, 12)(None, None) == (7, 4, 12)


def test_every_built_in_recipe_says_what_it_is_and_can_be_made_small():
    for recipe in built_in():
        names = {option["name"] for option in recipe["options"]}
        assert {"size", "epochs", "effective_batch", "seed"} <= names
        assert recipe["summary"].endswith(".")
        assert all(option["help"] for option in recipe["options"])
