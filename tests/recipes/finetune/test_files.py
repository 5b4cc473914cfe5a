from pathlib import Path

import pytest

from shoestring.base.errors import DataError
from shoestring_recipes.finetune.files import find_files, read_rows


def write(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"text": "a"}\n')
    return folder


def parts(folder: Path) -> dict[str, str]:
    return {file.name: file.part for file in find_files(folder)[0]}


def test_a_single_file_is_training_data_whatever_its_name(tmp_path: Path) -> None:
    (file,), notes = find_files(write(tmp_path, "test.JSONL") / "test.JSONL")
    assert (file.name, file.part, notes) == ("test.JSONL", "train", [])


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("train.jsonl", "train"),
        ("chats.ndjson", "train"),
        ("latest-valve.csv", "train"),
        ("train-00000-of-00002.parquet", "train"),
        ("validation-00000-of-00001.parquet", "validation"),
        ("my_val_2.json", "validation"),
        ("chats.dev.tsv", "validation"),
        ("valid/a.jsonl", "validation"),
        ("my-validation/deeper/a.jsonl", "validation"),
        ("dev/train.jsonl", "train"),
        ("train/dev/a.jsonl", "validation"),
    ],
)
def test_words_of_names_select_the_part(tmp_path: Path, name: str, part: str) -> None:
    assert parts(write(tmp_path, "base.jsonl", name)) == {"base.jsonl": "train", name: part}


def test_files_are_sorted_and_those_that_are_not_read_are_named(tmp_path: Path) -> None:
    write(
        tmp_path,
        "b.jsonl",
        "a/z.jsonl",
        "test.jsonl",
        "README.md",
        "dataset_info.json",
        "dataset-metadata.json",
        ".hidden/a.jsonl",
        "_log.csv",
    )
    files, notes = find_files(tmp_path)
    assert [file.name for file in files] == ["a/z.jsonl", "b.jsonl"]
    assert notes == [
        "1 file of the part test, not used: test.jsonl",
        "3 files of other kinds, not used: README.md, dataset-metadata.json, dataset_info.json",
    ]


def test_places_name_the_file_in_its_folder(tmp_path: Path) -> None:
    (file,), _ = find_files(write(tmp_path, "deep/a.jsonl"))
    assert list(read_rows(file, ())) == [("deep/a.jsonl, line 1", {"text": "a"})]


def test_a_folder_of_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoestring_recipes.finetune.files._MOST_FILES", 2)
    with pytest.raises(DataError, match="has more than 2 files"):
        find_files(write(tmp_path, "a.jsonl", "b.jsonl", "c.jsonl"))
