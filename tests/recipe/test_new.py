import pytest

from shoestring import api
from shoestring.base.errors import UsageError
from shoestring.recipe.finding import describe, find
from shoestring.recipe.new import write_recipe


def test_new_recipe_plans_trains_and_predicts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written = write_recipe("my_digits")
    assert written.json() == {
        "path": "my_digits.py",
        "class_name": "MyDigits",
        "commands": [
            "shoestring plan my_digits.py --on kaggle-t4",
            "shoestring check my_digits.py",
            "shoestring train my_digits.py --run runs/my_digits",
        ],
    }
    assert "my_digits.py" in describe(find("my_digits.py"))["summary"]
    assert "{name}" not in (tmp_path / "my_digits.py").read_text()
    rows = [",".join([*map(str, range(16)), str(label)]) for label in (0, 1, 2, 3, 0)]
    (tmp_path / "rows.csv").write_text("\n".join(rows))
    assert api.plan("my_digits.py", on="kaggle-t4").verdict == "fits"
    outcome = api.train("my_digits.py", run="run", on="cpu", epochs=1, data="rows.csv", width=8)
    assert outcome.status == "finished" and set(outcome.metrics) == {"validation"}
    assert len(api.load("run", recipe="my_digits.py").predict("rows.csv")) == 5


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("my-recipe", "imported as a module"),
        ("class", "imported as a module"),
        ("json", "installed module"),
        ("torch.py", "installed module"),
        ("a", "exists"),
    ],
)
def test_name_that_cannot_be_used_is_refused(tmp_path, name, reason):
    (tmp_path / "a.py").write_text("")
    with pytest.raises(UsageError, match=reason):
        write_recipe(name, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.py"]
