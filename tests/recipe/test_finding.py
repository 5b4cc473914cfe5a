import pytest

from shoestring.errors import UsageError
from shoestring.recipe.finding import built_in, find

MINE = """
class {name}:
    epochs: int = 5
    def model(self): ...
    def batch(self, size): ...
    def loss(self, model, batch): ...
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE.format(name="Mine"))
    return path


def test_a_file_is_found_with_its_defaults(mine):
    found = find(str(mine))
    assert (found.name, found.path) == ("mine.py", mine)
    assert (found.epochs, found.effective_batch, found.seed) == (5, 32, 0)
    assert len(found.digest) == 64


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
    with pytest.raises(UsageError, match="2 recipes: One, Two"):
        find(str(path))
    assert type(find(f"{path}:Two").recipe).__name__ == "Two"
    with pytest.raises(UsageError, match="did you mean Two"):
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
    with pytest.raises(UsageError, match=words):
        find(str(path))


def test_an_imported_recipe_is_not_the_files_own(tmp_path, mine):
    path = tmp_path / "uses.py"
    path.write_text("from shoestring.recipes.temporal import Temporal\n" + MINE.format(name="Own"))
    assert type(find(str(path)).recipe).__name__ == "Own"


@pytest.mark.parametrize("reference", ["tempral", "nope.py", "."])
def test_what_is_not_there_is_one_error(reference):
    with pytest.raises(UsageError, match="there is no"):
        find(reference)


def test_an_object_with_the_three_methods_is_a_recipe():
    class Mine:
        effective_batch = 4

        def model(self): ...
        def batch(self, size): ...
        def loss(self, model, batch): ...

    found = find(Mine())
    assert (found.name, found.is_live, found.reference, found.effective_batch) == ("Mine", True, "", 4)


def test_an_object_that_lacks_one_is_told():
    with pytest.raises(UsageError, match="lacks model, batch, loss"):
        find(object())


def test_every_built_in_recipe_says_what_it_is_and_can_be_made_small():
    for recipe in built_in():
        names = {option["name"] for option in recipe["options"]}
        assert {"size", "epochs", "effective_batch", "seed"} <= names
        assert recipe["summary"].endswith(".")
        assert all(option["help"] for option in recipe["options"])
