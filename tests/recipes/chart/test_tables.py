"""Arrow folders and Parquet files that Hugging Face's datasets has written."""

import json
import shutil

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from shoestring.base.errors import DataError, UsageError
from shoestring_recipes.chart.data import read_parts
from shoestring_recipes.chart.presentation import Presentation
from tests.recipes.chart.saved import TABLE, make_dataset, make_row, save_dataset

SHOWN = Presentation((56, 28))


@pytest.fixture(autouse=True)
def without_progress_bars():
    datasets.disable_progress_bars()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save_dataset(tmp_path_factory.mktemp("saved") / "dataset", [make_row(n) for n in range(20)], shards=2)


def colors(part):
    return [part[index]["image"].getpixel((0, 0))[0] for index in range(len(part))]


def test_a_saved_dataset_is_read_with_its_images(saved):
    assert len(list((saved / "train").glob("data-*-of-00002.arrow"))) == 2
    parts = read_parts(saved, SHOWN, "refuse")
    assert {name: len(part) for name, part in parts.items()} == {"train": 16, "validation": 2, "test": 2}
    row = parts["train"][11]
    assert (row["image"].size, row["label"], row["table"]) == ((56, 28), "11", TABLE)
    assert (row["chart_type"], row["reasoning"]) == ("bar", "<step-1>: read\n<step-2>: subtract")
    assert row["prompt"][1]["content"] == "What is the difference, number 11?"
    assert [color for part in parts.values() for color in colors(part)] == list(range(20))
    assert [chart.id for part in parts.values() for chart in part.rows] == list(range(20))
    assert parts["test"].describe(1)["image"] == "data-00001-of-00002.arrow, row 10"
    split = read_parts(saved / "train", SHOWN, "refuse")
    assert [colors(part) for part in split.values()] == [colors(part) for part in parts.values()]


def test_parquet_of_the_hub_is_read_by_parts(tmp_path):
    (tmp_path / "data").mkdir()
    for name, count in (("train-00000-of-00002", 6), ("train-00001-of-00002", 5), ("val-00000-of-00001", 3)):
        rows = make_dataset([make_row(n) for n in range(count)])
        rows.to_parquet(tmp_path / "data" / f"{name}.parquet", batch_size=2)  # several row groups
    parts = read_parts(tmp_path, SHOWN, "refuse")
    assert {name: colors(part) for name, part in parts.items()} == {
        "train": [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4],
        "validation": [0, 1, 2],
    }
    alone = read_parts(tmp_path / "data" / "val-00000-of-00001.parquet", SHOWN, "refuse")
    assert sum(map(len, alone.values())) == 3


def test_labels_of_chartqa_on_the_hub_are_lists_of_one(tmp_path):
    folder = save_dataset(tmp_path / "saved", [make_row(n, label=[str(n)]) for n in range(3)])
    assert read_parts(folder, SHOWN, "refuse")["train"][1]["label"] == "1"


def test_bad_rows_are_all_listed_or_skipped(tmp_path):
    Image.new("RGB", (9, 9)).save(tmp_path / "secret.png")
    rows = [make_row(n) for n in range(7)]
    rows[1]["image"] = {"bytes": b"no image", "path": None}
    rows[2]["image"] = None
    rows[3]["query"] = " "
    rows[4]["label"] = None
    rows[5]["table"] = {"columns": ["Year"], "rows": None}
    folder = save_dataset(tmp_path / "saved", rows)
    # datasets embeds the files that it can read; this one was written by another program.
    table = pyarrow.ipc.open_stream((folder / "train" / "data-00000-of-00001.arrow").read_bytes()).read_all()
    images = table["image"].to_pylist()
    images[6] = {"bytes": None, "path": str(tmp_path / "secret.png")}
    table = table.set_column(0, "image", pyarrow.array(images, table["image"].type))
    with pyarrow.ipc.new_stream(folder / "train" / "data-00000-of-00001.arrow", table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match="6 of 7 rows") as refused:
        read_parts(folder, SHOWN, "refuse")
    reasons = ["no file of", "it is missing", "no query", "no label", "its table", "only the path"]
    assert all(f"line {line}: " in text for line, text in zip(range(2, 8), refused.value.problems, strict=True))
    assert all(reason in text for reason, text in zip(reasons, refused.value.problems, strict=True))
    parts = read_parts(folder, SHOWN, "skip")
    assert len(parts["train"]) == 1 and "6 of 7 rows" in parts["train"].notes[0]


def test_annotations_may_be_absent(tmp_path):
    rows = [make_row(n, chart_type=None, reasoning=None) for n in range(3)]
    rows[0]["table"] = None
    rows[1]["table"] = {"columns": None, "rows": None}
    row = read_parts(save_dataset(tmp_path / "saved", rows), SHOWN, "refuse")["train"][1]
    assert [row[name] for name in ("chart_type", "reasoning", "table")] == [None, None, None]


DAMAGES = {
    "cut off": lambda content: content[: len(content) // 2],
    "only the end": lambda content: content[-8:],
    "empty": lambda content: b"",
    "text": lambda content: b"hello" * 100,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("suffix", ["arrow", "parquet"])
def test_a_damaged_file_is_one_error(saved, tmp_path, damage, suffix):
    file = tmp_path / f"rows.{suffix}"
    if suffix == "arrow":
        shutil.copy(saved / "train" / "data-00000-of-00002.arrow", file)
    else:
        make_dataset([make_row(n) for n in range(20)]).to_parquet(file)
    assert read_parts(file, SHOWN, "refuse")
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    with pytest.raises(UsageError, match=rf"rows\.{suffix} cannot be read: "):
        read_parts(file, SHOWN, "skip")


def test_files_of_other_columns_are_one_error_each(tmp_path):
    pyarrow.parquet.write_table(pyarrow.table({"image": [1], "query": ["?"], "label": ["3"]}), tmp_path / "a.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"question": ["?"]}), tmp_path / "b.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"image": [b""], "query": [1], "label": ["3"]}), tmp_path / "c.parquet")
    with pytest.raises(UsageError, match="3 files cannot be read") as refused:
        read_parts(tmp_path, SHOWN, "skip")
    first, second, third = refused.value.problems
    assert "column image has the type int64" in first and "column query has the type int64" in third
    assert "no column image, query, label" in second and "its columns are question" in second


def change_state(folder, **changes):
    file = folder / "train" / "state.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"_data_files": [{"filename": "../train/data-00000-of-00002.arrow"}]}, "no Arrow files in this folder"),
        ({"_data_files": [{"filename": "/etc/passwd"}]}, "no Arrow files in this folder"),
        ({"_data_files": [{"filename": "absent.arrow"}]}, "absent.arrow cannot be read"),
        ({"_data_files": [7]}, "names no files"),
        ({"_data_files": None}, "names no files"),
        ({"_indices_data_files": [{"filename": "indices.arrow"}]}, "a selection of rows"),
    ],
)
def test_state_of_a_dataset_is_not_trusted(saved, tmp_path, changes, problem):
    folder = shutil.copytree(saved, tmp_path / "copy")
    change_state(folder, **changes)
    with pytest.raises(UsageError) as refused:
        read_parts(folder, SHOWN, "refuse")
    assert problem in str(refused.value) + " ".join(refused.value.problems)


def test_a_dataset_without_a_training_part_is_refused(tmp_path):
    datasets.DatasetDict({"test": make_dataset([make_row(0)])}).save_to_disk(tmp_path / "saved")
    with pytest.raises(UsageError, match="no split train, only test"):
        read_parts(tmp_path / "saved", SHOWN, "refuse")
