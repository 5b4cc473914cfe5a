"""The answers to held-out prompts on the page of a run."""

import json
import re

from shoestring.answers.report.document import write
from tests.answers import runs


def page(folder, *events):
    run = runs.just_started(folder)
    with (run / "events.jsonl").open("a") as file:
        for event in events:
            file.write(
                json.dumps({"time": runs.BEGIN, "session": 1, "event": "answers", "seconds": 1.0, **event}) + "\n"
            )
    return write(run).read_text()


def cells(text):
    """Return the lines of the table of answers as lists of the text of its cells."""
    (section,) = re.findall(r"(?s)Answers to held-out prompts</h2>(.*?)</table>", text)
    lines = re.findall(r"(?s)<tr>(.*?)</tr>", section)
    return [
        [re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"(?s)<t[hd][^>]*>(.*?)</t[hd]>", line)] for line in lines
    ]


def row(prompt, answer, *, reference=None, stopped=True):
    return {"prompt": prompt, "answer": answer, "reference": reference, "stopped": stopped}


def test_answers_are_side_by_side(tmp_path):
    before = {"update": 0, "epoch": 0, "rows": [row("p", "?", reference="r", stopped=False), row("p", "q")]}
    skipped = {"update": 9, "epoch": 1, "rows": [], "skipped": "out of memory"}
    after = {"update": 18, "epoch": 2, "rows": [row("p", "<b>r</b>", reference="r"), row("p", "s\nt"), row("new", "n")]}
    text = page(tmp_path, before, skipped, after)
    assert cells(text) == [
        ["prompt", "reference", "before training", "after epoch 2"],
        ["p", "r", "? (cut at the largest length)", "&lt;b&gt;r&lt;/b&gt;"],
        ["p", "–", "q", "s\nt"],
        ["new", "–", "–", "n"],
    ]
    assert "Answers that ended by themselves: before training 1 of 2 answers; after epoch 2 3 of 3 answers." in text


def test_last_answers_at_an_update_count_and_references_are_optional(tmp_path):
    text = page(tmp_path, *({"update": 0, "epoch": 0, "rows": [row("p", answer)]} for answer in ("old", "new")))
    assert cells(text) == [["prompt", "before training"], ["p", "new"]]


def test_page_without_answers_has_no_such_section(tmp_path):
    text = page(tmp_path, {"update": 0, "rows": "damaged"}, {"update": 0, "rows": [3]})
    assert "held-out prompts" not in text
