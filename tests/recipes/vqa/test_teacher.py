import json
from pathlib import Path

import pytest

from shoestring.errors import DataError
from shoestring.recipes.rows import Rows
from shoestring.recipes.vqa import teacher
from tests.recipes.vqa.taught import row, written


def test_a_good_file(tmp_path: Path) -> None:
    path = written(tmp_path, [row(0), row(1, reasoning_type="CAUSAL", reasoning_weight=1), row(2)])
    for data in (path, tmp_path):
        found = teacher.read(data, None, Rows("refuse"))
        assert [sample.answer for sample in found] == ["màu đỏ", "màu xanh", "màu vàng"]
        assert [sample.weight for sample in found] == [4.0, 1.0, 4.0]
        assert [sample.group for sample in found] == ["0", "1", "2"]
    red = teacher.picture(found[0]).getpixel((5, 5))
    assert red == (200, 30, 30)


def test_a_row_without_a_weight_has_that_of_its_kind(tmp_path: Path) -> None:
    bare = row(0, reasoning_type="SPATIAL")
    del bare["reasoning_weight"], bare["img_id"]
    (found,) = teacher.read(written(tmp_path, [bare]), None, Rows("refuse"))
    assert (found.weight, found.group) == (1.5, "images/0.png")


BAD = {
    '{"question": ': "no JSON",
    "[1]": "no JSON object",
    json.dumps(row(0, question=" ", teacher_answer=3)): "no text in question, teacher_answer",
    json.dumps(row(0, reasoning_type="WHY")): "reasoning_type 'WHY' is none of CAUSAL",
    json.dumps(row(0, reasoning_type=["CAUSAL"])): "reasoning_type",
    json.dumps(row(0, reasoning_weight=float("nan"))): "reasoning_weight nan",
    json.dumps(row(0, reasoning_weight=True)): "reasoning_weight True",
    json.dumps(row(0, teacher_reasoning="<answer>")): "a tag or a < in teacher_reasoning",
    json.dumps(row(0, image_path="images/99.png")): "there is no image",
    json.dumps(row(0, image_path="images/broken.png")): "cannot be read",
    json.dumps(row(0, image_path="../secret.png")): "lies outside",
    json.dumps(row(0, image_path="/etc/hostname")): "lies outside",
    json.dumps(row(0, image_path="images/link.png")): "lies outside",
    json.dumps(row(0, image_path="a\0b")): "image_path",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A file with a good row in line 1, a bad one in each further line, and an empty line before the last."""
    path = written(tmp_path / "data", [row(0)])
    (tmp_path / "secret.png").write_bytes((path.parent / "images/0.png").read_bytes())
    (path.parent / "images/link.png").symlink_to(tmp_path / "secret.png")
    (path.parent / "images/broken.png").write_bytes((path.parent / "images/0.png").read_bytes()[:60])
    with path.open("ab") as file:
        file.write(("\n".join(BAD) + "\n\n").encode() + b"\xff\xfe\n")
    return path.parent


def test_all_bad_rows_are_told_of_at_once(folder: Path) -> None:
    with pytest.raises(DataError, match="15 of 16 rows") as refused:
        teacher.read(folder, None, Rows("refuse"))
    file = folder / "teacher_outputs.jsonl"
    for line, (problem, why) in enumerate(
        zip(refused.value.problems, [*BAD.values(), "no JSON"], strict=True), start=2
    ):
        assert problem.startswith(f"{file}, line {line + (line == 16)}: ") and why in problem, (problem, why)
    assert "on_bad_rows=skip" in (refused.value.hint or "")


def test_or_they_are_skipped_and_counted(folder: Path) -> None:
    rows = Rows("skip")
    assert len(teacher.read(folder, None, rows)) == 1
    assert "15 of 16 rows cannot be used and were skipped" in rows.notes[0]


def test_images_may_lie_elsewhere_when_that_is_said(folder: Path) -> None:
    line = json.dumps(row(0, image_path=str(folder.parent / "secret.png")))
    (folder / "teacher_outputs.jsonl").write_text(line)
    assert len(teacher.read(folder, folder.parent, Rows("refuse"))) == 1


def test_no_file_and_no_rows(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        teacher.read(tmp_path, None, Rows("skip"))
    (tmp_path / "teacher_outputs.jsonl").write_text("\n \n")
    with pytest.raises(DataError, match="no rows"):
        teacher.read(tmp_path, None, Rows("skip"))


def test_an_image_that_has_gone_is_an_error(tmp_path: Path) -> None:
    (found,) = teacher.read(written(tmp_path, [row(0)]), None, Rows("refuse"))
    Path(found.image).unlink()
    with pytest.raises(DataError, match="there is no image"):
        teacher.picture(found)
