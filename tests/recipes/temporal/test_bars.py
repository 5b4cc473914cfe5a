from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from shoestring.errors import DataError, UsageError
from shoestring.recipes.rows import SHOWN, Rows
from shoestring.recipes.temporal.bars import read_bars as read_with
from shoestring.recipes.temporal.bars import sample_bars

from .market import candles, several, written

HEADER = "time,open,high,low,close,volume"
GOOD = "2024-01-01,10,12,9,11,5"


def read_bars(path: Path, rows: Rows | None = None) -> pd.DataFrame:
    return read_with(path, rows or Rows("refuse"))


def problems_of(tmp_path: Path, *lines: str, header: str = HEADER) -> tuple[str, ...]:
    path = tmp_path / "bars.csv"
    path.write_text("\n".join((header, *lines)) + "\n")
    with pytest.raises(DataError) as refused:
        read_bars(path)
    assert str(path) in str(refused.value)
    return tuple(problem.removeprefix(f"{path}, ") for problem in refused.value.problems)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    bars = several(candles(30, symbol="A"), candles(40, symbol="B", seed=1))
    read = read_bars(written(tmp_path / "bars.csv", bars))
    pd.testing.assert_frame_equal(read, bars, check_categorical=False)


def test_names_in_any_case_and_order_and_other_columns_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "bars.csv"
    path.write_text("Volume, CLOSE ,Date,extra,Open,high,LOW\n5,11,2024-01-01 09:30,?,10,12,9\n", encoding="utf-8-sig")
    bar = read_bars(path).iloc[0]
    assert (bar["open"], bar["high"], bar["low"], bar["close"], bar["volume"]) == (10, 12, 9, 11, 5)
    assert bar["time"] == pd.Timestamp("2024-01-01 09:30")


def test_times_with_an_offset_become_utc(tmp_path: Path) -> None:
    path = tmp_path / "bars.csv"
    path.write_text(f"{HEADER}\n2024-01-01T02:00+02:00,10,12,9,11,5\n2024-01-01T01:00Z,10,12,9,11,5\n")
    assert list(read_bars(path)["time"].dt.hour) == [0, 1]


def test_a_symbol_may_be_called_na(tmp_path: Path) -> None:
    path = tmp_path / "bars.csv"
    path.write_text(f"symbol,{HEADER}\nNA,{GOOD}\n")
    assert list(read_bars(path)["symbol"]) == ["NA"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("2024-01-02,,12,9,11,5", "line 3: open '' is no finite number"),
        ("2024-01-02,nan,12,9,11,5", "line 3: open 'nan' is no finite number"),
        ("2024-01-02,10,12,9,inf,5", "line 3: close 'inf' is no finite number"),
        ("2024-01-02,10,12,9,eleven,5", "line 3: close 'eleven' is no finite number"),
        ("2024-01-02,10,12,9", "line 3: volume '' is no finite number"),
        ("2024-01-02,10,12,0,11,5", "line 3: low 0 is not positive"),
        ("2024-01-02,10,12,-9,11,5", "line 3: low -9 is not positive"),
        ("2024-01-02,10,12,9,11,-5", "line 3: volume -5 is negative"),
        ("2024-01-02,10,8,9,8.5,5", "line 3: high 8 is below open or close"),
        ("2024-01-02,10,10.5,9,11,5", "line 3: high 10.5 is below open or close"),
        ("2024-01-02,10,12,10.5,11,5", "line 3: low 10.5 is above open or close"),
        ("2024-01-02,10,10,12,10,5", "line 3: low 12 is above open or close"),
        ("soon,10,12,9,11,5", "line 3: time 'soon' is no time"),
        ("1704153600,10,12,9,11,5", "line 3: time '1704153600' is no time"),
        ("2023-12-31,10,12,9,11,5", "line 3: time 2023-12-31 00:00:00 comes before 2024-01-01 00:00:00"),
        ("2024-01-01,10,12,9,11,5", "line 3: time 2024-01-01 00:00:00 is there already"),
    ],
)
def test_a_bad_row_is_named_with_its_line(tmp_path: Path, line: str, problem: str) -> None:
    found = problems_of(tmp_path, GOOD, line)
    line_of, _, said = problem.partition(": ")
    assert any(each.startswith(f"{line_of}: ") and said in each for each in found), found


def test_all_problems_come_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    found = problems_of(tmp_path, GOOD, "2024-01-02,x,12,9,11,-1", "", "later,10,12,9,0,5", f"{GOOD},000")
    assert [each.partition(":")[0] for each in found] == ["line 3", "line 5", "line 6"], found
    assert found[0] == "line 3: open 'x' is no finite number; volume -1 is negative"
    assert found[2] == "line 6: 7 fields under 6 names"


def test_bad_rows_are_skipped_and_counted_where_that_is_chosen(tmp_path: Path) -> None:
    path = tmp_path / "bars.csv"
    good = candles(20)
    lines = good.to_csv(index=False).splitlines()
    bad = [lines[3].replace("AAA", ""), f"{lines[4]},000", lines[5].replace("2024", "soon"), lines[6], lines[6]]
    path.write_text("\n".join([*lines[:3], "", bad[0], *lines[3:6], *bad[1:4], *lines[7:10], bad[4], *lines[10:]]))
    rows = Rows("skip")
    pd.testing.assert_frame_equal(read_bars(path, rows), good, check_categorical=False)
    (note,) = rows.notes
    assert note.startswith("4 of 24 rows cannot be used and were skipped")
    for line, why in (
        (5, "symbol is empty"),
        (9, "8 fields under 7 names"),
        (10, "is no time"),
        (15, "is there already"),
    ):
        assert f"{path}, line {line}: " in note and why in note
    with pytest.raises(DataError, match="4 of 24 rows cannot be used"):
        read_bars(path)


def test_a_file_without_a_good_row_is_refused_however(tmp_path: Path) -> None:
    path = tmp_path / "bars.csv"
    for lines in ([f"{GOOD},0"], [f"{GOOD},0", f"{GOOD},0"], [GOOD.replace("11", "0")]):
        path.write_text("\n".join([HEADER, *lines]))
        with pytest.raises(DataError, match="nothing is left"):
            read_bars(path, Rows("skip"))


def test_lines_are_counted_as_an_editor_counts_them(tmp_path: Path) -> None:
    assert problems_of(tmp_path, "", GOOD, "  ", "2024-01-02,10,12,9,11,?")[0].startswith("line 5:")


def test_the_order_of_times_is_each_symbols_own(tmp_path: Path) -> None:
    rows = [f"B,{GOOD}", f"A,{GOOD}", f"B,{GOOD.replace('01-01', '01-02')}", f"A,{GOOD.replace('01-01', '01-02')}"]
    path = tmp_path / "bars.csv"
    path.write_text("\n".join((f"symbol,{HEADER}", *rows)))
    assert list(read_bars(path)["symbol"]) == ["A", "A", "B", "B"]
    (found,) = problems_of(tmp_path, *rows, rows[0], header=f"symbol,{HEADER}")
    assert "comes before" in found and "is there already" in found


def test_an_empty_symbol_is_a_problem(tmp_path: Path) -> None:
    assert problems_of(tmp_path, f",{GOOD}", header=f"symbol,{HEADER}") == ("line 2: symbol is empty",)


def test_a_long_list_ends_with_how_many_more(tmp_path: Path) -> None:
    found = problems_of(tmp_path, *(f"2024-01-01 00:00:{second},x,12,9,11,5" for second in range(10, 50)))
    assert len(found) == SHOWN + 1
    assert found[-1] == "and 20 more"


def test_missing_and_repeated_columns_are_all_named(tmp_path: Path) -> None:
    found = problems_of(tmp_path, "1,2,3,4", header="date,time,open,low")
    assert found == (
        "there is no column high",
        "there is no column close",
        "there is no column volume",
        "time: more than one column has this name",
    )


@pytest.mark.parametrize("lines", [(GOOD, f"{GOOD},000"), (f"{GOOD},000", f"{GOOD},000")])
def test_rows_with_too_many_fields(tmp_path: Path, lines: tuple[str, ...]) -> None:
    assert problems_of(tmp_path, *lines)[-1] == "line 3: 7 fields under 6 names"


def test_a_quote_that_never_ends(tmp_path: Path) -> None:
    for lines in ([f'"{GOOD}'], [f'"{GOOD}', *[GOOD] * 10_000]):
        (problem,) = problems_of(tmp_path, *lines)
        assert "inside string" in problem


def test_a_file_without_rows_or_without_anything(tmp_path: Path) -> None:
    assert problems_of(tmp_path) == ("there are no rows",)
    assert "there is no column time" in problems_of(tmp_path, header="")


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    for content in (b"\xff\xfe\x00", b"a" * 200_000, HEADER.encode() + b"\n" + GOOD.encode() + b"\xff\n"):
        (tmp_path / "bars.csv").write_bytes(content)
        with pytest.raises(DataError, match="cannot be read"):
            read_bars(tmp_path / "bars.csv")
    with pytest.raises(DataError, match="cannot be read"):
        read_bars(tmp_path / "absent.csv")


def test_a_read_only_file_is_enough(tmp_path: Path) -> None:
    path = written(tmp_path / "bars.csv", candles(30))
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        assert len(read_bars(path)) == 30
    finally:
        tmp_path.chmod(0o755)


def test_the_sample_bars_pass_the_checks_of_a_file(tmp_path: Path) -> None:
    bars = sample_bars()
    assert len(bars) == 1047
    assert bars["close"].iloc[0] == 100.34
    pd.testing.assert_frame_equal(read_bars(written(tmp_path / "goog.csv", bars)), bars, check_categorical=False)


def test_a_matplotlib_without_sample_data_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object, **__: object) -> None:
        raise FileNotFoundError("no such file")

    monkeypatch.setattr(np, "load", absent)
    with pytest.raises(UsageError, match="sample data"):
        sample_bars()
