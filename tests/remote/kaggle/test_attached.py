"""Attached datasets by the list of their files: what is not there, and how many rows there are."""

import pytest

from shoestring.base.errors import UsageError
from shoestring.recipe.finding import choose
from shoestring.remote.kaggle import attached
from shoestring.remote.kaggle.attached import Attached, count_rows, list_files
from shoestring.remote.kaggle.client import KaggleError
from shoestring.remote.kaggle.package import parse_data


class Lists:
    """A client that lists these files; None, or an error, in place of them."""

    def __init__(self, files):
        self.files, self.calls = files, []

    def dataset_files(self, dataset, **limits):
        self.calls.append(limits)
        if isinstance(self.files, KaggleError):
            raise self.files
        return self.files and [{"name": name, "bytes": size} for name, size in self.files.items()]


def listed(text, files, *, for_rows=False):
    return list_files(Lists(files), parse_data([text])[0], f"--data {text}", for_rows=for_rows)


def test_what_is_not_there_is_a_problem():
    files = {"folder/train.csv": 1, "folder/deep/a.csv": 2}
    (problem,) = listed("me/there:test.csv", files).problems()
    assert "no such file or folder; it has folder/deep/a.csv, folder/train.csv" in problem
    (problem,) = listed("me/missing", None).problems()
    assert "no such dataset" in problem
    there = listed("me/there:folder", files)
    assert not list(there.problems()) and there.data_files == {"train.csv": 1, "deep/a.csv": 2}
    assert listed("me/there:folder/train.csv", files).data_files == {"train.csv": 1}
    assert listed("me/there", files).data_files == files


def test_lists_are_not_longer_than_needed():
    for text, for_rows, limits in (
        ("me/one", False, {"max_files": 0, "path": None}),
        ("me/one:.", False, {"max_files": 0, "path": "."}),
        ("me/one:a.csv", False, {"max_files": attached.MAX_FILES, "path": "a.csv"}),
        ("me/one:a.csv", True, {"max_files": attached.MAX_FILES, "path": None}),
    ):
        client = Lists({"a.csv": 1})
        list_files(client, parse_data([text])[0], "", for_rows=for_rows)
        assert client.calls == [limits]


LEGAL = choose("legal", {})[0]
MANY = {f"cases/{number}.txt": 40_000 for number in range(30)}


def test_rows_are_those_of_the_files_at_the_path():
    assert count_rows(LEGAL, listed("me/law:cases", {**MANY, "other/a.txt": 1}, for_rows=True)) == 30


@pytest.mark.parametrize(
    ("recipe", "files", "reason"),
    [
        ("legal", {"cases/a.txt": 1}, "the names and sizes of the 1 files of the data do not tell it"),
        ("vqa", MANY, "vqa cannot tell it from the names and sizes of files"),
        ("legal", KaggleError("busy", "temporary"), "Kaggle has not listed the files of me/law: busy"),
        ("legal", MANY, "me/law has more than 20 files, of which no complete list is read"),
    ],
)
def test_rows_that_are_not_known_are_an_error_with_two_ways_on(recipe, files, reason, monkeypatch):
    monkeypatch.setattr(attached, "MAX_FILES", 20 if "20 files" in reason else 20_000)
    loaded = choose(recipe, {})[0]
    with pytest.raises(UsageError) as error:
        count_rows(loaded, listed("me/law:cases", files, for_rows=True))
    assert error.value.problems[0] == reason and error.value.problems[1] == f"a row is {loaded.parts.data.row}"
    assert "--set rows=N" in error.value.hint and f"check {recipe} --set data=PATH --lengths FILE" in error.value.hint


def test_a_count_that_fails_is_an_error_of_the_recipe():
    class Mine:
        def model(self): ...

        def batch(self, size): ...

        def loss(self, model, batch): ...

        def count_rows(self, files):
            return files["nothing"]

    source = parse_data(["me/law"])[0]
    with pytest.raises(UsageError, match=r"count_rows\(\) of Mine failed"):
        count_rows(choose(Mine(), {})[0], Attached(source=source, argument="", is_there=True, files={"a": 1}))


def test_an_account_that_is_not_signed_in_is_not_a_list_that_did_not_come():
    with pytest.raises(KaggleError):
        listed("me/law", KaggleError("no token", "account"))
