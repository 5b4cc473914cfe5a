"""Questions without answers, from a file and from a list."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from shoestring.base.errors import DataError
from shoestring.recipe.inputs import Input
from shoestring_recipes.vqa import VQA, Options
from tests.recipes.vqa.teacher_data import make_row, write_data


def make(**options: Any) -> VQA:
    return VQA(Options(size="tiny", beams=2, **options))


def write_questions(folder: Path, rows: list[Any], name: str = "questions.jsonl") -> Path:
    path = folder / name
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def outcome(item: Input) -> str:
    """Return why an input cannot be used; an empty text if it can."""
    if item.error is not None:
        return item.error
    assert item.load is not None
    try:
        item.load()
    except ValueError as error:
        return str(error)
    return ""


def test_questions_have_the_predictions_of_an_evaluation(tmp_path: Path) -> None:
    rows = [make_row(number) for number in range(6)]
    labeled = write_data(tmp_path / "data", [*rows[:5], rows[5] | {"id": "own"}])
    plain = write_questions(
        tmp_path / "data", ["", *({"image_path": row["image_path"], "question": row["question"]} for row in rows)]
    )
    recipe = make(data=labeled)
    torch.manual_seed(0)
    model: Any = recipe.model().eval()
    dataset = recipe.whole()
    assert [recipe.identify(dataset, index) for index in range(6)] == [0, 1, 2, 3, 4, "own"]
    batch = recipe.collate([dataset[index] for index in range(6)])
    assert recipe.targets(batch) == [row["teacher_answer"] for row in rows]
    inputs = list(recipe.inputs(plain))
    assert [item.id for item in inputs] == [None] * 6
    assert inputs[4].value == {"image": "images/4.png", "question": "Màu gì trong ảnh?"}
    unlabeled = recipe.collate([item.load() for item in inputs if item.load])
    assert torch.equal(unlabeled.images, batch.images) and torch.equal(unlabeled.questions, batch.questions)
    assert unlabeled.whole.shape == (6, 0) and unlabeled.whole.dtype == torch.int64
    with torch.no_grad():
        predictions = recipe.predict(model, unlabeled)
        assert predictions == recipe.predict(model, batch)
        assert recipe.evaluate(model, [batch])["exact_match"] == sum(
            row["prediction"] == answer for row, answer in zip(predictions, recipe.targets(batch), strict=True)
        ) / 6  # fmt: skip
    assert all(row["text"].startswith("<answer>") for row in predictions)
    assert predictions[0].keys() == {"prediction", "reason", "well_formed", "text"}


def test_unusable_rows_and_images_are_errors_each(tmp_path: Path) -> None:
    write_data(tmp_path / "data", [make_row(number) for number in range(2)])
    (tmp_path / "data" / "broken.png").write_bytes(b"\x89PNG\r\n")
    os.mkfifo(tmp_path / "data" / "pipe.png")
    (tmp_path / "data" / "link.png").symlink_to("/etc/passwd")
    good = {"image": "images/0.png", "question": "Gì?"}
    rows: list[tuple[Any, str]] = [
        (good, ""),
        ("{", "no JSON"),
        ("[]", "no JSON object"),
        ({"image": "images/0.png"}, "no text in question"),
        ({"question": "Gì?"}, "no text in image_path"),
        (good | {"image": 3}, "no text in image_path"),
        (good | {"image": "../data.png"}, "outside"),
        (good | {"image": "/etc/passwd"}, "outside"),
        (good | {"image": "link.png"}, "outside"),
        (good | {"image": "a\0b"}, "no path"),
        (good | {"image": "none.png"}, "there is no image"),
        (good | {"image": "broken.png"}, "cannot be read"),
        (good | {"image": "pipe.png"}, "a pipe"),
        (good | {"question": "a\0b"}, "question contains a NUL"),
        ({**good, "id": "x", "question": " "}, "no text in question"),
        (good, ""),
    ]
    inputs = list(make().inputs(write_questions(tmp_path / "data", [row for row, _ in rows])))
    assert len(inputs) == len(rows)
    for item, (row, problem) in zip(inputs, rows, strict=True):
        reason = outcome(item)
        assert problem in reason and bool(problem) == bool(reason), (row, reason)
    assert inputs[14].id == "x"


def test_a_list_may_have_images(tmp_path: Path) -> None:
    write_data(tmp_path / "data", [make_row(0)])
    path = tmp_path / "data" / "images" / "0.png"
    with Image.open(path) as image:
        image.load()
    items = [
        {"image": image, "question": "Gì?", "id": "a"},
        {"image": str(path), "question": "Gì?"},
        {"image_path": "0.png", "question": "Gì?"},
        "Gì?",
        {"image": image, "question": "\ud800"},
    ]
    inputs = list(make(images=path.parent).inputs(items[:1] + items[2:]))
    inputs.insert(1, next(iter(make().inputs(items[1:2]))))
    assert [outcome(item) for item in inputs[:3]] == ["", "", ""]
    first, *others = (item.load()[0] for item in inputs[:3] if item.load)
    assert all(torch.equal(first, other) for other in others)
    assert inputs[0].id == "a" and inputs[0].value == {"image": None, "question": "Gì?"}
    assert "is no object" in outcome(inputs[3]) and "half a character" in outcome(inputs[4])


def test_the_file_of_a_folder(tmp_path: Path) -> None:
    recipe = make()
    with pytest.raises(DataError, match="does not exist"):
        list(recipe.inputs(tmp_path / "none"))
    with pytest.raises(DataError, match="no files"):
        list(recipe.inputs(tmp_path))
    write_questions(tmp_path, [{"question": "Gì?"}])
    assert len(list(recipe.inputs(tmp_path))) == 1
    write_questions(tmp_path, [], "other.jsonl")
    with pytest.raises(DataError, match="2 files"):
        list(recipe.inputs(tmp_path))
    write_questions(tmp_path, [{}, {}], "teacher_outputs.jsonl")
    assert len(list(recipe.inputs(tmp_path))) == 2


def test_without_data_the_digits_are_asked_about() -> None:
    item = next(iter(make().inputs(None)))
    assert item.id == "0" and outcome(item) == ""
