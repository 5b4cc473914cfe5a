import json
from pathlib import Path

import pytest

from shoestring.base.errors import DataError
from shoestring_recipes.rows import BadRows
from shoestring_recipes.vqa import teacher
from tests.recipes.vqa.teacher_data import make_row, write_data


def test_valid_rows_are_read(tmp_path: Path) -> None:
    path = write_data(tmp_path, [make_row(0), make_row(1, reasoning_type="CAUSAL", reasoning_weight=1), make_row(2)])
    for data in (path, tmp_path):
        samples = teacher.read(data, None, BadRows("refuse"))
        assert [sample.answer for sample in samples] == ["màu đỏ", "màu xanh", "màu vàng"]
        assert [sample.weight for sample in samples] == [4.0, 1.0, 4.0]
        assert [sample.group for sample in samples] == ["0", "1", "2"]
    assert teacher.load_image(samples[0]).getpixel((5, 5)) == (200, 30, 30)


def test_default_weight_depends_on_the_kind(tmp_path: Path) -> None:
    bare = make_row(0, reasoning_type="SPATIAL")
    del bare["reasoning_weight"], bare["img_id"]
    (sample,) = teacher.read(write_data(tmp_path, [bare]), None, BadRows("refuse"))
    assert (sample.weight, sample.group) == (1.5, "images/0.png")


BAD = {
    '{"question": ': "no JSON",
    "[1]": "no JSON object",
    json.dumps(make_row(0, question=" ", teacher_answer=3)): "no text in question, teacher_answer",
    json.dumps(make_row(0, reasoning_type="WHY")): "reasoning_type 'WHY' is none of CAUSAL",
    json.dumps(make_row(0, reasoning_type=["CAUSAL"])): "reasoning_type",
    json.dumps(make_row(0, reasoning_weight=float("nan"))): "reasoning_weight nan",
    json.dumps(make_row(0, reasoning_weight=True)): "reasoning_weight True",
    json.dumps(make_row(0, reasoning_weight=1e300)): "reasoning_weight 1e+300",
    json.dumps(make_row(0, reasoning_weight=10**400)): "is too large",
    json.dumps(make_row(0, teacher_answer="\ud800")): "half a character",
    "[" * 100_000: "nested too deeply",
    json.dumps(make_row(0, teacher_reasoning="<answer>")): "a tag or a < in teacher_reasoning",
    json.dumps(make_row(0, image_path="images/99.png")): "there is no image",
    json.dumps(make_row(0, image_path="images/broken.png")): "cannot be read",
    json.dumps(make_row(0, image_path="../secret.png")): "lies outside",
    json.dumps(make_row(0, image_path="/etc/hostname")): "lies outside",
    json.dumps(make_row(0, image_path="images/link.png")): "lies outside",
    json.dumps(make_row(0, image_path="a\0b")): "image_path",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A file with a valid row in line 1, an invalid row in each other line, and an empty line before the last."""
    path = write_data(tmp_path / "data", [make_row(0)])
    (tmp_path / "secret.png").write_bytes((path.parent / "images/0.png").read_bytes())
    (path.parent / "images/link.png").symlink_to(tmp_path / "secret.png")
    (path.parent / "images/broken.png").write_bytes((path.parent / "images/0.png").read_bytes()[:60])
    with path.open("ab") as file:
        file.write(("\n".join(BAD) + "\n\n").encode() + b"\xff\xfe\n")
    return path.parent


def test_all_bad_rows_are_reported(folder: Path) -> None:
    with pytest.raises(DataError, match="19 of 20 rows") as refused:
        teacher.read(folder, None, BadRows("refuse"))
    file = folder / "teacher_outputs.jsonl"
    for line, (problem, reason) in enumerate(
        zip(refused.value.problems, [*BAD.values(), "no JSON"], strict=True), start=2
    ):
        assert problem.startswith(f"{file}, line {line + (line == 20)}: ") and reason in problem, (problem, reason)
    assert "on_bad_rows=skip" in (refused.value.hint or "")


def test_bad_rows_are_skipped_and_counted(folder: Path) -> None:
    bad_rows = BadRows("skip")
    assert len(teacher.read(folder, None, bad_rows)) == 1
    assert "19 of 20 rows cannot be used and were skipped" in bad_rows.notes[0]


def test_incomplete_rows_are_taken_as_the_published_loader_takes_them(tmp_path: Path) -> None:
    rows = [make_row(number) for number in range(6)]
    del rows[0]["reasoning_type"], rows[0]["reasoning_weight"]
    rows[1] |= {"reasoning_type": "NEUTRAL", "reasoning_weight": 3}
    rows[2] |= {"teacher_reasoning": " "}
    rows[3] |= {"reasoning_type": None, "teacher_reasoning": None}
    del rows[4]["teacher_reasoning"]
    path = write_data(tmp_path, rows)
    with pytest.raises(DataError, match="5 of 6 rows") as refused:
        teacher.read(path, None, BadRows("refuse"))
    assert (refused.value.hint or "").endswith("; 5 of them can be used with --set incomplete_rows=neutral")
    bad_rows = BadRows("refuse")
    samples = teacher.read(path, None, bad_rows, takes_incomplete=True)
    assert [(sample.kind, sample.weight) for sample in samples] == [
        *(("NEUTRAL", 1.0), ("NEUTRAL", 3.0), ("DESCRIPTIVE", 4.0)),
        *(("NEUTRAL", 4.0), ("DESCRIPTIVE", 4.0), ("DESCRIPTIVE", 4.0)),
    ]
    assert [bool(sample.reasoning) for sample in samples] == [True, True, False, False, False, True]
    assert bad_rows.notes == ["5 of 6 rows have no type but NEUTRAL, or no reasoning (incomplete_rows=neutral)"]
    rows[5]["reasoning_type"] = "WHY"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(DataError, match="1 of 6 rows") as refused:
        teacher.read(path, None, BadRows("refuse"), takes_incomplete=True)
    assert "NEUTRAL" in refused.value.problems[0]


def test_images_may_be_in_another_folder(folder: Path) -> None:
    line = json.dumps(make_row(0, image_path=str(folder.parent / "secret.png")))
    (folder / "teacher_outputs.jsonl").write_text(line)
    assert len(teacher.read(folder, folder.parent, BadRows("refuse"))) == 1


def test_missing_file_and_empty_file_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        teacher.read(tmp_path, None, BadRows("skip"))
    (tmp_path / "teacher_outputs.jsonl").write_text("\n \n")
    with pytest.raises(DataError, match="no rows"):
        teacher.read(tmp_path, None, BadRows("skip"))


def test_an_image_deleted_after_reading_is_an_error(tmp_path: Path) -> None:
    (sample,) = teacher.read(write_data(tmp_path, [make_row(0)]), None, BadRows("refuse"))
    Path(sample.image).unlink()
    with pytest.raises(DataError, match="there is no image"):
        teacher.load_image(sample)
