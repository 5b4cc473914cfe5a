from pathlib import Path

import pytest

from shoestring.errors import DataError
from shoestring.recipes.legal import roles
from shoestring.recipes.legal.documents import Document, read
from shoestring.recipes.rows import Rows

KNOWN = roles.numbers(roles.SETS["legalseg"])


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def read_all(path: Path, **found: list[Document]) -> dict[str, list[Document]]:
    return read(path, KNOWN, Rows("refuse"))


def test_a_blank_line_ends_a_judgment(tmp_path: Path) -> None:
    file = written(tmp_path / "a.txt", "\ufeffOne\tFacts\nTwo\tIssue\n\n \nThree\tNone\n")
    assert read_all(file) == {
        "all": [Document(sentences=("One", "Two"), roles=(1, 2)), Document(sentences=("Three",), roles=(0,))]
    }


def test_of_several_tabs_the_last_one_counts_and_case_does_not(tmp_path: Path) -> None:
    file = written(tmp_path / "a.txt", "One\tand more\tFACTS\r\nTwo\tAoP\r\nThree\targuments of petitioner \n")
    assert read_all(file)["all"] == [Document(sentences=("One\tand more", "Two", "Three"), roles=(1, 3, 3))]


def test_a_folder_has_a_judgment_in_each_file_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.tsv"):
        written(tmp_path / name, f"{name}\tFacts\n")
    written(tmp_path / "README.md", "no judgment")
    assert [one.sentences for one in read_all(tmp_path)["all"]] == [("a.txt",), ("b.txt",), ("c.tsv",)]


@pytest.mark.parametrize("names", [("train.txt", "dev.txt", "test.txt"), ("train/a.txt", "val/b.txt", "test/c.txt")])
def test_a_folder_may_say_which_part_is_which(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        written(tmp_path / name, f"{name}\tFacts\n")
    found = read_all(tmp_path)
    assert {part: one[0].sentences[0] for part, one in found.items()} == dict(
        zip(("train", "validation", "test"), names, strict=True)
    )


def test_every_bad_row_is_named_with_its_file_and_line(tmp_path: Path) -> None:
    one = written(tmp_path / "a.txt", "One\tFacts\nno tab\n\t Facts\nTwo\tFcats\n")
    other = written(tmp_path / "b.txt", "Three\tRatio of the decision\n")
    other.write_bytes(other.read_bytes() + b"caf\xe9\tFacts\n")
    with pytest.raises(DataError) as refused:
        read_all(tmp_path)
    assert refused.value.message == "5 of 6 rows cannot be used"
    assert refused.value.problems == (
        f"{one}, line 2: has no tab between a sentence and its role: 'no tab'",
        f"{one}, line 3: has no sentence",
        f"{one}, line 4: role 'Fcats' is unknown; did you mean facts?",
        f"{other}, line 1: role 'Ratio of the decision' is one of law-ai: --set roles=law-ai",
        f"{other}, line 2: is not UTF-8: invalid continuation byte at byte 3",
    )


def test_skipped_rows_leave_the_others_and_are_counted(tmp_path: Path) -> None:
    file = written(tmp_path / "a.txt", "One\tFacts\nno tab\nTwo\tIssue\n")
    rows = Rows("skip")
    assert read(file, KNOWN, rows) == {"all": [Document(sentences=("One", "Two"), roles=(1, 2))]}
    assert rows.notes[0].startswith("1 of 3 rows")


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file or folder"):
        read_all(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"no file \*\.txt"):
        read_all(tmp_path)


def test_roles_may_be_listed() -> None:
    assert roles.names("A, B,C") == ("A", "B", "C")
    assert roles.problem("A,B") is None
    assert "did you mean legalseg" in str(roles.problem("legalsegs"))
    assert roles.problem("A,,B") and roles.problem("A,a")


def test_every_set_of_roles_has_a_class_for_each() -> None:
    assert {name: len(own) for name, own in roles.SETS.items()} == {"legalseg": 7, "law-ai": 7, "build": 13}
    assert all(roles.problem(name) is None for name in roles.SETS)
