"""Rows in every layout that the recipe reads."""

import json

import pytest
from PIL import Image

from shoestring.base.errors import DataError, UsageError
from shoestring_recipes.chart.data import read_parts
from shoestring_recipes.chart.presentation import Presentation


def write_folder(folder, rows, images=("a.png", "b.png")):
    (folder / "png").mkdir()
    for name in images:
        Image.new("RGB", (30, 20), "red").save(folder / "png" / name)
    (folder / "rows.json").write_text(json.dumps(rows))
    return folder


ROW = {"imgname": "a.png", "query": "how many?", "label": 3}


def test_rows_are_read_with_their_images(tmp_path):
    parts = read_parts(
        write_folder(tmp_path, [{**ROW, "imgname": f"{'ab'[n % 2]}.png"} for n in range(20)]),
        Presentation((28, 56)),
        "refuse",
    )
    assert {name: len(part) for name, part in parts.items()} == {"train": 16, "validation": 2, "test": 2}
    row = parts["train"][1]
    assert row["image"].size == (28, 56) and row["label"] == "3" and row["table"] is None
    assert row["prompt"][1] == {"role": "user", "content": "how many?"}


def test_bad_rows_are_all_listed_or_skipped(tmp_path):
    (tmp_path / "secret.png").write_bytes(b"")
    rows = [ROW, {**ROW, "imgname": "../secret.png"}, {**ROW, "label": ""}, 7, {**ROW, "imgname": "c.png"}]
    folder = write_folder(tmp_path, rows)
    (folder / "png" / "c.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="4 of 5 rows") as refused:
        read_parts(folder, Presentation((28, 28)), "refuse")
    assert [f"line {line}" in problem for line, problem in zip((2, 3, 4, 5), refused.value.problems, strict=True)]
    assert "is not in" in refused.value.problems[0] and "has no label" in refused.value.problems[1]
    parts = read_parts(folder, Presentation((28, 28)), "skip")
    assert len(parts["train"]) == 1 and "4 of 5 rows" in parts["train"].notes[0]


def test_folder_without_json_file_is_rejected(tmp_path):
    (tmp_path / "dataset-metadata.json").write_text("{}")  # of Kaggle's client
    with pytest.raises(UsageError, match="0 JSON files"):
        read_parts(tmp_path, Presentation((28, 28)), "refuse")


def test_the_file_of_kaggles_client_has_no_rows(tmp_path):
    folder = write_folder(tmp_path, [ROW] * 3)
    (folder / "dataset-metadata.json").write_text("{}")
    parts = read_parts(folder, Presentation((28, 28)), "refuse")
    assert sum(map(len, parts.values())) == 3


def write_chartqa(folder, counts):
    """Write the layout of ChartQA's download, with `counts` rows by file."""
    for name, count in counts.items():
        part = folder / name.partition("_")[0]
        (part / "png").mkdir(parents=True, exist_ok=True)
        rows = [{**ROW, "imgname": f"{n}.png", "query": f"{name} {n}?"} for n in range(count)]
        for row in rows:
            Image.new("RGB", (30, 20)).save(part / "png" / row["imgname"])
        (part / f"{name}.json").write_text(json.dumps(rows))
    return folder


def test_chartqa_has_its_own_parts(tmp_path):
    counts = {"train_human": 2, "train_augmented": 3, "val_human": 1, "test_human": 2, "test_augmented": 1}
    parts = read_parts(write_chartqa(tmp_path, counts), Presentation((28, 28)), "refuse")
    assert {name: [chart.query for chart in part.rows] for name, part in parts.items()} == {
        "train": [*(f"train_augmented {n}?" for n in range(3)), *(f"train_human {n}?" for n in range(2))],
        "validation": ["val_human 0?"],
        "test": ["test_augmented 0?", "test_human 0?", "test_human 1?"],
    }
    assert [chart.id for part in parts.values() for chart in part.rows] == list(range(9))
    assert parts["train"][0]["image"].size == (28, 28)


def test_bad_rows_of_several_files_are_listed_together(tmp_path):
    folder = write_chartqa(tmp_path, {"train_human": 9, "train_augmented": 3, "test_human": 2})
    (folder / "train" / "png" / "2.png").unlink()
    (folder / "test" / "png" / "1.png").write_bytes(b"")
    with pytest.raises(DataError, match="3 of 14 rows") as refused:  # both files of train/ have a row with 2.png
        read_parts(folder, Presentation((28, 28)), "refuse")
    problems = refused.value.problems
    assert "train_augmented.json, line 3" in problems[0] and "train_human.json, line 3" in problems[1]
    assert "test_human.json, line 2" in problems[2]


def test_data_with_a_test_part_alone_is_validated_on_the_last_tenth(tmp_path):
    folder = write_chartqa(tmp_path, {"train_human": 10, "test_human": 2})
    parts = read_parts(folder, Presentation((28, 28)), "refuse")
    assert {name: len(part) for name, part in parts.items()} == {"train": 9, "validation": 1, "test": 2}


def test_chartqa_without_rows_to_train_on_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no rows to train on"):
        read_parts(write_chartqa(tmp_path, {"test_human": 1}), Presentation((28, 28)), "refuse")


def test_a_table_may_be_json_in_a_text(tmp_path):
    table = {"columns": ["year"], "rows": [["2001"]]}
    folder = write_folder(tmp_path, [{**ROW, "table": json.dumps(table)}, {**ROW, "table": "{"}])
    with pytest.raises(DataError, match="1 of 2 rows") as refused:
        read_parts(folder, Presentation((28, 28)), "refuse")
    assert "its table is not JSON" in refused.value.problems[0]
    (part,) = read_parts(folder, Presentation((28, 28)), "skip").values()
    assert part[0]["table"] == table
