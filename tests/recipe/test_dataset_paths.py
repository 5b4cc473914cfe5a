"""Options that are paths in datasets of Kaggle."""

from pathlib import Path

import pytest

from shoestring.base.errors import UsageError
from shoestring.recipe.dataset_paths import DatasetPath, parse_dataset_path
from shoestring.recipe.finding import choose_attached, choose_for_plan


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("me/law", DatasetPath(dataset="me/law")),
        ("me/law:cases/", DatasetPath(dataset="me/law", path="cases")),
        ("me/law:.", DatasetPath(dataset="me/law", path=".")),
        ("law", None),
        ("me/law/cases", None),
        ("./me/law", None),
        ("me/law.csv", None),
    ],
)
def test_text_of_a_path(text, path):
    assert parse_dataset_path(text) == path
    assert path is None or str(path) == text.rstrip("/")


def test_a_path_of_this_machine_and_a_name_on_the_hub_are_in_no_dataset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loaded, _ = choose_attached("legal", {"data": "me/law", "size": "tiny"})
    assert loaded.in_datasets == {"data": DatasetPath(dataset="me/law")} and loaded.options["data"] is None
    Path("me/law").mkdir(parents=True)
    loaded, _ = choose_attached("legal", {"data": "me/law", "size": "tiny"})
    assert loaded.in_datasets == {} and loaded.options["data"] == tmp_path / "me" / "law"
    loaded, _ = choose_attached("finetune", {"model": "owner/name", "data": "me/texts:a.jsonl"})
    assert loaded.options["model"] == "owner/name" and loaded.in_datasets.keys() == {"data"}
    loaded, _ = choose_attached("finetune", {"model": "owner/name:.", "data": "me/texts:a.jsonl"})
    assert loaded.in_datasets.keys() == {"data", "model"}


def test_a_plan_has_to_know_the_rows():
    with pytest.raises(UsageError, match="data=me/law: there is no such path here") as error:
        choose_for_plan("legal", {"data": "me/law"})
    assert "--set rows=N" in error.value.hint
    loaded, _ = choose_for_plan("legal", {"data": "me/law", "rows": "50"})
    assert loaded.absent_data.rows == 50
