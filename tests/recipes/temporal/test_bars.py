from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from shoestring.base.errors import DataError, UsageError
from shoestring_recipes.rows import MAX_LISTED, BadRows
from shoestring_recipes.temporal.bars import load_sample_bars, parse_rows
from shoestring_recipes.temporal.bars import read_bars as read_bars_with_rows

from .market import concatenate, random_bars, write_csv

HEADER = "time,open,high,low,close,volume"
GOOD = "2024-01-01,10,12,9,11,5"


def read_bars(path: Path, bad_rows: BadRows | None = None) -> pd.DataFrame:
    return read_bars_with_rows(path, bad_rows or BadRows("refuse")).reset_index(drop=True)


def read_problems(tmp_path: Path, *lines: str, header: str = HEADER) -> tuple[str, ...]:
    path = tmp_path / "bars.csv"
    path.write_text("\n".join((header, *lines)) + "\n")
    with pytest.raises(DataError) as error:
        read_bars(path)
    assert str(path) in str(error.value)
    return tuple(problem.removeprefix(f"{path}, ") for problem in error.value.problems)


def test_written_bars_are_read_unchanged(tmp_path: Path) -> None:
    bars = concatenate(random_bars(30, symbol="A"), random_bars(40, symbol="B", seed=1))
    result = read_bars(write_csv(tmp_path / "bars.csv", bars))
    pd.testing.assert_frame_equal(result, bars, check_categorical=False)


def test_column_names_in_any_case_and_order(tmp_path: Path) -> None:
    path = tmp_path / "bars.csv"
    path.write_text("Volume, CLOSE ,Date,extra,Open,high,LOW\n5,11,2024-01-01 09:30,?,10,12,9\n", encoding="utf-8-sig")
    bar = read_bars(path).iloc[0]
    assert (bar["open"], bar["high"], bar["low"], bar["close"], bar["volume"]) == (10, 12, 9, 11, 5)
    assert bar["time"] == pd.Timestamp("2024-01-01 09:30")


def test_times_with_an_offset_become_utc(tmp_path: Path) -> None:
    path = tmp_path / "bars.csv"
    path.write_text(f"{HEADER}\n2024-01-01T02:00+02:00,10,12,9,11,5\n2024-01-01T01:00Z,10,12,9,11,5\n")
    assert list(read_bars(path)["time"].dt.hour) == [0, 1]


def test_na_is_a_valid_symbol(tmp_path: Path) -> None:
    path = tmp_path / "bars.csv"
    path.write_text(f"symbol,{HEADER}\nNA,{GOOD}\n")
    assert list(read_bars(path)["symbol"]) == ["NA"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("2024-01-02,,12,9,11,5", "line 3: open '' is not a finite number"),
        ("2024-01-02,nan,12,9,11,5", "line 3: open 'nan' is not a finite number"),
        ("2024-01-02,10,12,9,inf,5", "line 3: close 'inf' is not a finite number"),
        ("2024-01-02,10,12,9,eleven,5", "line 3: close 'eleven' is not a finite number"),
        ("2024-01-02,10,12,9", "line 3: volume '' is not a finite number"),
        ("2024-01-02,10,12,0,11,5", "line 3: low 0 is not positive"),
        ("2024-01-02,10,12,-9,11,5", "line 3: low -9 is not positive"),
        ("2024-01-02,10,12,9,11,-5", "line 3: volume -5 is negative"),
        ("2024-01-02,10,8,9,8.5,5", "line 3: high 8 is below open or close"),
        ("2024-01-02,10,10.5,9,11,5", "line 3: high 10.5 is below open or close"),
        ("2024-01-02,10,12,10.5,11,5", "line 3: low 10.5 is above open or close"),
        ("2024-01-02,10,10,12,10,5", "line 3: low 12 is above open or close"),
        ("soon,10,12,9,11,5", "line 3: time 'soon' is not a time"),
        ("17041536,10,12,9,11,5", "line 3: time '17041536' is not a time"),
        ("2023-12-31,10,12,9,11,5", "line 3: time 2023-12-31 00:00:00 is before 2024-01-01 00:00:00 in the row above"),
        ("2024-01-01,10,12,9,11,5", "line 3: time 2024-01-01 00:00:00 occurs twice"),
    ],
)
def test_an_unusable_row_is_reported_with_its_line(tmp_path: Path, line: str, problem: str) -> None:
    problems = read_problems(tmp_path, GOOD, line)
    line_prefix, _, message = problem.partition(": ")
    assert any(reported.startswith(f"{line_prefix}: ") and message in reported for reported in problems), problems


def test_all_problems_are_reported_in_file_order(tmp_path: Path) -> None:
    problems = read_problems(tmp_path, GOOD, "2024-01-02,x,12,9,11,-1", "", "later,10,12,9,0,5", f"{GOOD},000")
    assert [problem.partition(":")[0] for problem in problems] == ["line 3", "line 5", "line 6"], problems
    assert problems[0] == "line 3: open 'x' is not a finite number; volume -1 is negative"
    assert problems[2] == "line 6: has 7 fields, but the header has 6"


def test_unusable_rows_are_skipped_if_requested(tmp_path: Path) -> None:
    path = tmp_path / "bars.csv"
    usable = random_bars(20)
    lines = usable.to_csv(index=False).splitlines()
    bad_lines = [lines[3].replace("AAA", ""), f"{lines[4]},000", lines[5].replace("2024", "soon"), lines[6], lines[6]]
    path.write_text(
        "\n".join([*lines[:3], "", bad_lines[0], *lines[3:6], *bad_lines[1:4], *lines[7:10], bad_lines[4], *lines[10:]])
    )
    bad_rows = BadRows("skip")
    pd.testing.assert_frame_equal(read_bars(path, bad_rows), usable, check_categorical=False)
    (note,) = bad_rows.notes
    assert note.startswith("4 of 24 rows cannot be used and were skipped")
    for line, reason in (
        (5, "symbol is empty"),
        (9, "has 8 fields, but the header has 7"),
        (10, "is not a time"),
        (15, "occurs twice"),
    ):
        assert f"{path}, line {line}: " in note and reason in note
    with pytest.raises(DataError, match="4 of 24 rows cannot be used"):
        read_bars(path)


def test_a_file_without_usable_rows_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "bars.csv"
    for lines in ([f"{GOOD},0"], [f"{GOOD},0", f"{GOOD},0"], [GOOD.replace("11", "0")]):
        path.write_text("\n".join([HEADER, *lines]))
        with pytest.raises(DataError, match="nothing is left"):
            read_bars(path, BadRows("skip"))


def test_line_numbers_include_blank_lines(tmp_path: Path) -> None:
    assert read_problems(tmp_path, "", GOOD, "  ", "2024-01-02,10,12,9,11,?")[0].startswith("line 5:")


def test_times_are_ordered_within_each_symbol(tmp_path: Path) -> None:
    rows = [f"B,{GOOD}", f"A,{GOOD}", f"B,{GOOD.replace('01-01', '01-02')}", f"A,{GOOD.replace('01-01', '01-02')}"]
    path = tmp_path / "bars.csv"
    path.write_text("\n".join((f"symbol,{HEADER}", *rows)))
    assert list(read_bars(path)["symbol"]) == ["A", "A", "B", "B"]
    (problem,) = read_problems(tmp_path, *rows, rows[0], header=f"symbol,{HEADER}")
    assert "is before" in problem and "occurs twice" in problem


def test_an_empty_symbol_is_a_problem(tmp_path: Path) -> None:
    assert read_problems(tmp_path, f",{GOOD}", header=f"symbol,{HEADER}") == ("line 2: symbol is empty",)


def test_a_long_list_of_problems_is_abbreviated(tmp_path: Path) -> None:
    problems = read_problems(tmp_path, *(f"2024-01-01 00:00:{second},x,12,9,11,5" for second in range(10, 50)))
    assert len(problems) == MAX_LISTED + 1
    assert problems[-1] == "and 20 more"


def test_all_missing_and_repeated_columns_are_reported(tmp_path: Path) -> None:
    problems = read_problems(tmp_path, "1,2,3,4", header="date,datetime,open,low")
    assert problems == (
        "there is no column high",
        "there is no column close",
        "there is no column volume",
        "time: more than one column has this name",
    )


@pytest.mark.parametrize("lines", [(GOOD, f"{GOOD},000"), (f"{GOOD},000", f"{GOOD},000")])
def test_rows_with_too_many_fields(tmp_path: Path, lines: tuple[str, ...]) -> None:
    assert read_problems(tmp_path, *lines)[-1] == "line 3: has 7 fields, but the header has 6"


def test_an_unclosed_quote_is_reported(tmp_path: Path) -> None:
    for lines in ([f'"{GOOD}'], [f'"{GOOD}', *[GOOD] * 10_000]):
        (problem,) = read_problems(tmp_path, *lines)
        assert "inside string" in problem


def test_a_file_without_rows_or_header(tmp_path: Path) -> None:
    assert read_problems(tmp_path) == ("there are no rows",)
    assert "there is no column time" in read_problems(tmp_path, header="")


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    for content in (b"\xff\xfe\x00", b"a" * 200_000, HEADER.encode() + b"\n" + GOOD.encode() + b"\xff\n"):
        (tmp_path / "bars.csv").write_bytes(content)
        with pytest.raises(DataError, match="cannot be read"):
            read_bars(tmp_path / "bars.csv")
    with pytest.raises(DataError, match="cannot be read"):
        read_bars(tmp_path / "absent.csv")


def test_a_read_only_file_can_be_read(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "bars.csv", random_bars(30))
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        assert len(read_bars(path)) == 30
    finally:
        tmp_path.chmod(0o755)


def test_sample_bars_are_valid(tmp_path: Path) -> None:
    bars = load_sample_bars()
    assert len(bars) == 1047
    assert bars["close"].iloc[0] == 100.34
    pd.testing.assert_frame_equal(read_bars(write_csv(tmp_path / "goog.csv", bars)), bars, check_categorical=False)


def test_missing_sample_data_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object, **__: object) -> None:
        raise FileNotFoundError("no such file")

    monkeypatch.setattr(np, "load", absent)
    with pytest.raises(UsageError, match="sample data"):
        load_sample_bars()


TERMINAL = "<DATE>\t<TIME>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\t<TICKVOL>\t<VOL>\t<SPREAD>"
EXPORTS = {
    "the terminal's": (TERMINAL, "2024.01.02\t09:30:00\t10\t12\t9\t11\t5\t0\t3"),
    "the terminal's, of days": (TERMINAL.replace("\t<TIME>", ""), "2024.01.02\t10\t12\t9\t11\t5\t0\t3"),
    "without a header": ("2024.01.02,09:30,10,12,9,11,5", ""),
    "the package's": (
        ",time,open,high,low,close,tick_volume,spread,real_volume",
        "0,1704187800,10.0,12.0,9.0,11.0,5,3,0",
    ),
    "the package's, with times": ("time,open,high,low,close,tick_volume", "2024-01-02 09:30:00,10,12,9,11,5"),
    "semicolons": ("Time;Open;High;Low;Close;Volume", "2024-01-02 09:30;10;12;9;11;5"),
    "milliseconds": (HEADER, "1704187800000,10,12,9,11,5"),
    "tabs without a header": ("2024.01.02 09:30\t10\t12\t9\t11\t5\t7", ""),
    "a volume and one of ticks": ("time,open,high,low,close,tick_volume,volume", "2024-01-02 09:30,10,12,9,11,99,5"),
}


@pytest.mark.parametrize("name", EXPORTS)
def test_exports_of_metatrader_are_read_as_they_are(tmp_path: Path, name: str) -> None:
    path = tmp_path / "EURUSD_M30.csv"
    path.write_text("\r\n".join(line for line in EXPORTS[name] if line) + "\r\n", encoding="utf-8-sig")
    (bar,) = read_bars(path).to_dict("records")
    assert [bar[column] for column in ("open", "high", "low", "close", "volume")] == [10, 12, 9, 11, 5]
    assert bar["time"] == pd.Timestamp("2024-01-02" if name.endswith("days") else "2024-01-02 09:30")


def test_rows_with_a_date_and_a_time_of_day() -> None:
    row = {"date": "2024.01.02", "time": "09:30", "open": 10, "high": 12, "low": 9, "close": 11, "tick_volume": 5}
    (bar,) = parse_rows([row]).usable_bars().to_dict("records")
    assert (bar["time"], bar["volume"]) == (pd.Timestamp("2024-01-02 09:30"), 5)


def test_problems_of_a_file_without_a_header_have_their_lines(tmp_path: Path) -> None:
    first = "2024.01.01,09:30,10,12,9,11,5"
    problems = read_problems(tmp_path, "2024.01.02,09:30,10,8,9,11,5", "2024.01.03,9:30,10,12,9,11,5,6,7", header=first)
    assert (
        problems[0].startswith("line 2: high 8 is below")
        and problems[1] == "line 3: has 9 fields, but the first row has 7"
    )
