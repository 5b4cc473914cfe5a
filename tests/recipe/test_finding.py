import pytest

from shoestring.base.errors import UsageError
from shoestring.recipe.contract import require_data
from shoestring.recipe.finding import describe_installed, find

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


def test_file_is_loaded_with_its_defaults(mine):
    loaded = find(str(mine))
    assert (loaded.name, loaded.path) == ("mine.py", mine)
    assert (loaded.epochs, loaded.effective_batch, loaded.seed) == (5, 32, 0)
    assert len(loaded.digest) == 64


def test_reference_is_valid_in_any_working_directory(mine, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for reference in ("mine.py", "mine.py:Mine"):
        loaded = find(reference)
        monkeypatch.chdir("/")
        reloaded = find(loaded.reference)
        assert (reloaded.digest, reloaded.name) == (loaded.digest, loaded.name)
        monkeypatch.chdir(tmp_path)


def test_class_selects_one_of_several_recipes(tmp_path):
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
def test_file_without_a_usable_recipe_is_refused(tmp_path, text, words):
    path = tmp_path / "odd.py"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        find(str(path))


def test_imported_recipe_does_not_count(tmp_path, mine):
    path = tmp_path / "uses.py"
    path.write_text("from shoestring_recipes.temporal import Temporal\n" + MINE.format(name="Own"))
    assert type(find(str(path)).recipe).__name__ == "Own"


@pytest.mark.parametrize("reference", ["tempral", "nope.py", ".", "a" * 5000, "a" * 5000 + ".py"])
def test_missing_recipe_is_refused(reference):
    with pytest.raises(UsageError, match="there is no"):
        find(reference)


def test_reference_without_prefix_suggests_the_hugging_face_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    for reference in ("Qwen/Qwen3-0.6B", "model", "model/config.json", str(tmp_path / "model")):
        with pytest.raises(UsageError, match=f"for a Hugging Face model use hf:{reference}$"):
            find(reference)
    with pytest.raises(UsageError, match=r"recipe_class\('Qwen/Qwen3-0.6B'\)"):
        require_data(find("hf:Qwen/Qwen3-0.6B").recipe)


def test_object_with_three_methods_is_a_recipe():
    class Mine:
        effective_batch = 4

        def model(self): ...
        def batch(self, size): ...
        def loss(self, model, batch): ...

    loaded = find(Mine())
    assert (loaded.name, loaded.is_live, loaded.reference, loaded.effective_batch) == ("Mine", True, "", 4)


def test_object_without_the_methods_is_refused():
    with pytest.raises(UsageError, match="lacks model, batch, loss"):
        find(object())


def test_built_in_recipes_have_a_summary_and_sizes():
    for recipe in describe_installed():
        names = {option["name"] for option in recipe["options"]}
        assert {"size", "epochs", "effective_batch", "seed"} <= names
        assert recipe["summary"].endswith(".")
        assert all(option["help"] for option in recipe["options"])
