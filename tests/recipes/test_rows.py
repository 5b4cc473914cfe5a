from pathlib import Path

import pytest

from shoestring.base.errors import DataError
from shoestring_recipes.rows import MAX_LISTED, BadRows

FILE = Path("somewhere/a.txt")


def test_good_rows_give_no_note() -> None:
    rows = BadRows("refuse")
    rows.finish(3)
    assert rows.notes == []


def test_bad_rows_are_listed_with_file_and_line() -> None:
    rows = BadRows("refuse")
    rows.report(FILE, 3, "has no role")
    rows.report(Path("b.png"), None, "is no picture")
    with pytest.raises(DataError) as refused:
        rows.finish(1200)
    assert refused.value.message == "2 of 1,200 rows cannot be used"
    assert refused.value.problems == ("somewhere/a.txt, line 3: has no role", "b.png: is no picture")
    assert "on_bad_rows=skip" in str(refused.value.hint)


def test_many_bad_rows_are_counted_and_partly_listed() -> None:
    rows = BadRows("refuse")
    for line in range(1, MAX_LISTED + 1501):
        rows.report(FILE, line, "is empty")
    with pytest.raises(DataError) as refused:
        rows.finish(5000)
    assert len(refused.value.problems) == MAX_LISTED + 1
    assert refused.value.problems[-1] == "and 1,500 more"
    assert refused.value.message.startswith("1,520 of 5,000")


def test_skipped_rows_are_counted_in_a_note() -> None:
    rows = BadRows("skip")
    rows.report(FILE, 3, "has no role")
    rows.finish(10)
    (note,) = rows.notes
    assert note.startswith("1 of 10 rows cannot be used and were skipped")
    assert "somewhere/a.txt, line 3: has no role" in note


def test_skipping_every_row_is_an_error() -> None:
    rows = BadRows("skip")
    rows.report(FILE, 1, "has no role")
    with pytest.raises(DataError, match="nothing is left"):
        rows.finish(1)
