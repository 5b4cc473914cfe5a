"""Reading judgments without roles."""

import os
from pathlib import Path
from textwrap import wrap

import pytest

from shoestring.base.errors import DataError
from shoestring_recipes.legal.roles import SETS
from shoestring_recipes.legal.texts import Judgment, Reader

SENTENCES = [
    "The appeal of Ram v. State of Bihar was heard under Art. 136 of the Constitution",
    "Mr. Justice Das held that section 5 of Act No. 3 of 1950 does not apply to the house of the widow",
    "The respondent did not appear",
    "It was urged that the notice was bad, and that no other notice had been served on the tenant in time",
    "The appeal fails and is dismissed",
]


def read(source: Path | list[object], form: str = "auto") -> list[Judgment]:
    return list(Reader(form=form, roles=SETS["law-ai"]).read(source))


def texts(judgment: Judgment) -> list[str | None]:
    return [sentence.error or sentence.text for sentence in judgment.sentences]


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_line_is_a_sentence_and_a_blank_line_ends_a_judgment(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "\ufeffOne\r\n two \r\n\r\n\r\nThree\tFacts\nFour\tand more\n")
    judgments = read(file)
    assert [(judgment.name, texts(judgment)) for judgment in judgments] == [
        ("a.txt", ["One", "two"]),
        ("a.txt#2", ["Three", "Four\tand more"]),
    ]


@pytest.mark.parametrize("ending", ["", "."])
def test_text_is_recognized_and_running_text_is_split(tmp_path: Path, ending: str) -> None:
    write(tmp_path / "lines.txt", "\n".join(sentence + ending for sentence in SENTENCES))
    write(tmp_path / "small.txt", "the appeal fails\nit is dismissed\n")
    write(tmp_path / "wrapped.txt", "\n".join(wrap(". ".join(SENTENCES) + ".", 60)))
    write(tmp_path / "paragraphs.txt", ". ".join(SENTENCES[:3]) + ".\n \n" + ". ".join(SENTENCES[3:]) + ".")
    reader = Reader(form="auto", roles=SETS["law-ai"])
    judgments = {judgment.name: texts(judgment) for judgment in reader.read(tmp_path)}
    split = [f"{sentence}." for sentence in SENTENCES]
    assert judgments == {
        "lines.txt": [sentence + ending for sentence in SENTENCES],
        "paragraphs.txt": split,
        "small.txt": ["the appeal fails", "it is dismissed"],
        "wrapped.txt": split,
    }
    assert "2 of 4 texts" in reader.notes()[0] and "text=lines" in reader.notes()[0]


def test_the_option_decides(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "The appeal fails. Costs\nfollow.")
    assert [texts(judgment) for judgment in read(file, "lines")] == [["The appeal fails. Costs", "follow."]]
    assert [texts(judgment) for judgment in read(file, "running")] == [["The appeal fails.", "Costs follow."]]


def test_white_space_of_running_text_takes_linear_time() -> None:
    assert texts(read(["The appeal fails." + "\n" * 300_000 + " " * 300_000 + "Costs follow."], "running")[0]) == [
        "The appeal fails.",
        "Costs follow.",
    ]


def test_a_list_has_texts_and_judgments_with_identifiers() -> None:
    judgments = read(["One\nTwo", {"id": "x", "sentences": ["Three. Four", "five"]}, {"id": 7, "text": "Six\n\nSeven"}])
    assert [(judgment.name, judgment.id, texts(judgment)) for judgment in judgments] == [
        ("0", None, ["One", "Two"]),
        ("x", "x", ["Three. Four", "five"]),
        ("7", 7, ["Six"]),
        ("7#2", "7#2", ["Seven"]),
    ]


def test_what_cannot_be_read_is_an_error_each(tmp_path: Path) -> None:
    write(tmp_path / "bytes.txt", b"One\nT\xffwo\nThree\0\n\tFacts\nFive")
    write(tmp_path / "empty.txt", "\n \n")
    os.mkfifo(tmp_path / "pipe.txt")
    write(tmp_path / "running.txt", b"One is \xff. Two is")
    write(tmp_path / "void.txt", "")
    assert {judgment.name: texts(judgment) for judgment in read(tmp_path)} == {
        "bytes.txt": [
            "One",
            "bytes.txt, line 2: is not UTF-8: invalid start byte at byte 1",
            "bytes.txt, line 3: contains a NUL character, which no text has",
            "bytes.txt, line 4: has no sentence",
            "Five",
        ],
        "empty.txt": ["empty.txt: has no sentences: it is empty"],
        "pipe.txt": ["pipe.txt: cannot be read: it is a pipe, not a regular file"],
        "running.txt": ["running.txt, line 1: is not UTF-8: invalid start byte at byte 7"],
        "void.txt": ["void.txt: has no sentences: it is empty"],
    }
    items = [1, {"text": "a", "sentences": ["a"]}, {"sentences": ["a", 2, " "]}, {"id": [], "text": "a"}, "\ud800", ""]
    assert [text for judgment in read(items) for text in texts(judgment)] == [
        "0: has neither a `text` nor a list of `sentences`",
        "1: has neither a `text` nor a list of `sentences`",
        "a",
        "2, sentence 2: is no text but int",
        "2, sentence 3: has no sentence",
        "3: its id is neither a text nor an integer",
        "4: contains half a character",
        "5: has no sentences: it is empty",
    ]
    assert [texts(judgment) for judgment in read(tmp_path / "running.txt", "running")] == [
        ["running.txt: is not UTF-8: invalid start byte at byte 7"]
    ]


def test_missing_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        Reader(form="auto", roles=()).read(tmp_path / "none")
    with pytest.raises(DataError, match=r"has no file \*.txt"):
        Reader(form="auto", roles=()).read(tmp_path)


def test_files_are_read_when_they_are_due(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.txt", "One\n\nTwo\n")
    judgments = Reader(form="auto", roles=()).read(tmp_path)
    assert next(judgments).name == "0.txt"
    write(tmp_path / "1.txt", "Changed")
    assert [judgment.name for judgment in judgments] == ["0.txt#2", "1.txt", "2.txt", "2.txt#2"]
