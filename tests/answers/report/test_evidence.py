"""The evidence of an evaluation on the page of a run."""

import base64
import json
import re

import pytest

from shoestring.answers.report.classes import figures
from shoestring.answers.report.document import write
from tests.answers import runs

PNG = b"\x89PNG\r\n\x1a\n" + b"content"
MATRIX = {"labels": ["fact_a", "<b>"], "counts": [[3, 1], [0, 6]]}


def page(folder, *evaluations, images=()):
    run = runs.just_started(folder)
    with (run / "events.jsonl").open("a") as file:
        for number, evidence in enumerate(evaluations):
            event = {
                "time": runs.BEGIN,
                "session": 1,
                "event": "evaluation",
                "part": "validation",
                "update": 3 + number,
                "metrics": {"loss": 1.0},
                "best": True,
            }
            file.write(json.dumps({**event, **({"evidence": evidence} if evidence else {})}) + "\n")
    for name, content in images:
        target = run / "evidence" / "validation-00000003" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return write(run).read_text()


def labels(text):
    return re.findall(r'aria-label="([^"]*)"', text)


def test_classes_are_drawn(tmp_path):
    text = page(tmp_path, {"confusion_matrix": MATRIX})
    assert {"Confusion matrix", "Precision, recall and F1 of each class"} <= set(labels(text))
    assert "fact a (4)" in text and "&lt;b&gt; (6)" in text
    assert "On the validation data, after update 3, the best so far." in text


@pytest.mark.parametrize(
    "matrix",
    [
        None,
        {"labels": ["a"]},
        {"labels": ["a"], "counts": [[1, 2]]},
        {"labels": ["a", "b"], "counts": [[1, "x"], [1, 2]]},
        {"labels": ["a", "b"], "counts": [[1, -1], [1, 2]]},
        {"labels": ["a", "b"], "counts": [[1, 1]]},
        {"labels": [str(number) for number in range(50)], "counts": [[0] * 50] * 50},
    ],
)
def test_damaged_or_large_matrix_is_not_drawn(matrix):
    assert list(figures(matrix)) == []


def test_histograms_are_drawn(tmp_path):
    text = page(tmp_path, {"histograms": {"psnr": {"edges": [0, 1, 2], "counts": [3, 4]}, "ssim": {"edges": [0]}}})
    assert "Histogram of psnr" in labels(text) and "Of 7 samples" in text
    assert "Histogram of ssim" not in labels(text)


def example(index, **row):
    return {"group": "worst", "index": index, "name": f"s{index}", "scores": {"psnr": 20.5}, **row}


def test_images_of_examples_are_part_of_the_page(tmp_path):
    files = [{"caption": "cloudy", "file": "7-0.png"}, {"caption": "error", "file": "7-1.jpg"}]
    images = [("7-0.png", PNG), ("7-1.jpg", b"\xff\xd8\xff1")]
    text = page(tmp_path, {"examples": [example(7, images=files)], "samples": [example(7)]}, images=images)
    assert f'<img src="data:image/png;base64,{base64.b64encode(PNG).decode()}" alt="cloudy: Worst: s7">' in text
    assert 'src="data:image/jpeg;base64,' in text
    assert "psnr 20.5" in text and "Single samples, the worst first (1)" in text


def test_images_outside_of_the_folder_are_not_read(tmp_path):
    (tmp_path / "secret.png").write_bytes(PNG + b"secret")
    names = ["../../../secret.png", "/etc/passwd", "7-2.png", "7-3.png", "7-4.png"]
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    files = [{"caption": "x", "file": name} for name in names] + ["nonsense", {"file": 3}]
    images = [("7-2.png", PNG + bytes(1_000_001))]
    text = page(run_folder, {"examples": [example(7, images=files), "nonsense"]}, images=images)
    assert "<img" not in text and "Worst: s7" not in text


def test_texts_of_examples_are_a_table(tmp_path):
    rows = [example(1, texts={"question": "q <i>", "true_answer": "a"}), example(2, texts={"question": 5})]
    text = page(tmp_path, {"examples": rows})
    (section,) = re.findall(r"(?s)Examples</h3>(.*?)</table>", text)
    lines = re.findall(r"(?s)<tr>(.*?)</tr>", section)
    cells = [
        [re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"(?s)<t[hd][^>]*>(.*?)</t[hd]>", line)] for line in lines
    ]
    assert cells == [
        ["example", "question", "true answer", "scores"],
        ["Worst: s1", "q &lt;i&gt;", "a", "psnr 20.5"],
        ["Worst: s2", "5", "–", "psnr 20.5"],
    ]


def test_last_best_epoch_is_shown(tmp_path):
    text = page(tmp_path, {"confusion_matrix": MATRIX}, None, {"confusion_matrix": MATRIX})
    assert "On the validation data, after update 5, the best so far." in text


@pytest.mark.parametrize("evidence", [None, {}, {"examples": "x", "samples": {}, "histograms": [1]}, "x", {"y": 1}])
def test_page_without_evidence_has_no_such_section(tmp_path, evidence):
    assert "Evaluation in detail" not in page(tmp_path, evidence)


def test_linked_folder_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "7-0.png").write_bytes(PNG)
    run_folder = tmp_path / "run"
    (run_folder / "evidence").mkdir(parents=True)
    (run_folder / "evidence" / "validation-00000003").symlink_to(tmp_path / "elsewhere")
    files = [{"caption": "x", "file": "7-0.png"}]
    with pytest.raises(Exception, match="symbolic link"):
        page(run_folder, {"examples": [example(7, images=files)]})
