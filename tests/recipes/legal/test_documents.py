from pathlib import Path

import pytest

from shoestring.base.errors import DataError
from shoestring_recipes.legal import roles
from shoestring_recipes.legal.documents import Document, count_documents, read
from shoestring_recipes.rows import BadRows

CLASSES = roles.class_numbers(roles.SETS["legalseg"])


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def read_strictly(path: Path) -> dict[str, list[Document]]:
    return read(path, CLASSES, BadRows("refuse"))


def test_a_blank_line_ends_a_judgment(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "\ufeffOne\tFacts\nTwo\tIssue\n\n \nThree\tNone\n")
    assert read_strictly(file) == {
        "all": [Document(sentences=("One", "Two"), roles=(1, 2)), Document(sentences=("Three",), roles=(0,))]
    }


def test_the_last_tab_counts_and_case_does_not(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "One\tand more\tFACTS\r\nTwo\tAoP\r\nThree\targuments of petitioner \n")
    assert read_strictly(file)["all"] == [Document(sentences=("One\tand more", "Two", "Three"), roles=(1, 3, 3))]


def test_files_of_a_folder_are_read_by_name(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.tsv"):
        write(tmp_path / name, f"{name}\tFacts\n")
    write(tmp_path / "README.md", "no judgment")
    assert [document.sentences for document in read_strictly(tmp_path)["all"]] == [("a.txt",), ("b.txt",), ("c.tsv",)]


@pytest.mark.parametrize("names", [("train.txt", "dev.txt", "test.txt"), ("train/a.txt", "val/b.txt", "test/c.txt")])
def test_names_of_files_or_folders_define_the_parts(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        write(tmp_path / name, f"{name}\tFacts\n")
    parts = read_strictly(tmp_path)
    assert {part: documents[0].sentences[0] for part, documents in parts.items()} == dict(
        zip(("train", "validation", "test"), names, strict=True)
    )


def test_all_unusable_rows_are_reported_with_their_lines(tmp_path: Path) -> None:
    first = write(tmp_path / "a.txt", "One\tFacts\nno tab\n\t Facts\nTwo\tFcats\n")
    second = write(tmp_path / "b.txt", "Three\tRatio of the decision\n")
    second.write_bytes(second.read_bytes() + b"caf\xe9\tFacts\n")
    with pytest.raises(DataError) as error:
        read_strictly(tmp_path)
    assert error.value.message == "5 of 6 rows cannot be used"
    assert error.value.problems == (
        f"{first}, line 2: has no tab between a sentence and its role: 'no tab'",
        f"{first}, line 3: has no sentence",
        f"{first}, line 4: role 'Fcats' is unknown; did you mean facts?",
        f"{second}, line 1: role 'Ratio of the decision' belongs to law-ai: --set roles=law-ai",
        f"{second}, line 2: is not UTF-8: invalid continuation byte at byte 3",
    )


def test_skipped_rows_are_counted(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "One\tFacts\nno tab\nTwo\tIssue\n")
    bad_rows = BadRows("skip")
    assert read(file, CLASSES, bad_rows) == {"all": [Document(sentences=("One", "Two"), roles=(1, 2))]}
    assert bad_rows.notes[0].startswith("1 of 3 rows")


def test_missing_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        read_strictly(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"no file \*\.txt"):
        read_strictly(tmp_path)


def test_roles_may_be_a_list() -> None:
    assert roles.role_names("A, B,C") == ("A", "B", "C")
    assert roles.roles_problem("A,B") is None
    assert "did you mean legalseg" in str(roles.roles_problem("legalsegs"))
    assert roles.roles_problem("A,,B") and roles.roles_problem("A,a")


def test_every_set_of_roles_is_valid() -> None:
    assert {name: len(names) for name, names in roles.SETS.items()} == {"legalseg": 7, "law-ai": 7, "build": 13}
    assert all(roles.roles_problem(name) is None for name in roles.SETS)


@pytest.mark.parametrize(
    ("names", "count"),
    [
        (("a.txt", "b.tsv", "README.md", "deep/c.txt", "empty.txt"), 2),
        (("train/a.txt", "train/b.txt", "dev/c.txt", "notes/d.txt", "e.txt", "test/deep/f.txt"), 3),
        (("train.txt", "dev/a.txt", "dev/b.txt"), None),  # the first one has any number of judgments
        (("all.txt",), None),
        (("a.csv", "b.csv"), None),
    ],
)
def test_files_with_one_judgment_each_are_counted_as_they_are_read(tmp_path, names, count):
    for name in names:
        write(tmp_path / name, "" if name == "empty.txt" else f"{name}\tFacts\n")
    sizes = {name: (tmp_path / name).stat().st_size for name in names}
    assert count_documents(sizes) == count
    if count:
        assert sum(map(len, read_strictly(tmp_path).values())) == count
    assert count_documents(dict.fromkeys(names, 10**6)) is None  # too large for one judgment each
