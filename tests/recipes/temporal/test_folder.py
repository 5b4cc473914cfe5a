"""Folders of files as MetaTrader 5 exports them: several symbols and timeframes."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from shoestring.base.errors import DataError, UsageError
from shoestring_recipes.rows import BadRows
from shoestring_recipes.temporal import Options, Temporal
from shoestring_recipes.temporal.dataset import Sampling, load_bars
from shoestring_recipes.temporal.exported import TIMEFRAMES, find_files
from shoestring_recipes.temporal.folder import Folder, choose_longer
from shoestring_recipes.temporal.folder import read_folder as read_folder_with_rows
from shoestring_recipes.temporal.table import tabulate
from shoestring_recipes.temporal.timeframes import PERIODS, closes

from .market import aggregate, change_future, export, export_market, random_bars, write_csv

QUARTERS = random_bars(900, spacing="15min", seed=5)
HOURS, FOURS, DAYS = (aggregate(QUARTERS, spacing) for spacing in ("1h", "4h", "1D"))


def read_folder(folder: Path, timeframe: str | None = None) -> Folder:
    return read_folder_with_rows(folder, BadRows("refuse"), timeframe=timeframe)


def problems_of(folder: Path, timeframe: str | None = None) -> str:
    with pytest.raises(DataError) as caught:
        read_folder(folder, timeframe)
    assert caught.value.hint
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    export(tmp_path / "mt5", "EURUSD_M15.csv", QUARTERS)
    export(tmp_path / "mt5", "EURUSD_H1.csv", HOURS)
    export(tmp_path / "mt5", "EURUSD_H4.csv", FOURS)
    return tmp_path / "mt5"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("EURUSD_M15.csv", ("EURUSD", "M15")),
        ("EURUSD_M1_202001010000_202312312355.csv", ("EURUSD", "M1")),
        ("US30_cash_MN1.CSV", ("US30_cash", "MN1")),
        ("EURUSD.a_Daily_202001060000_202506020000.csv", ("EURUSD.a", "D1")),
        ("#AAPL_h4.csv", ("#AAPL", "H4")),
    ],
)
def test_symbol_and_timeframe_are_in_the_name(tmp_path: Path, name: str, expected: tuple[str, str]) -> None:
    (tmp_path / name).touch()
    (tmp_path / "._hidden.csv").touch()
    (tmp_path / "README.txt").touch()
    (file,) = find_files(tmp_path)
    assert (file.symbol, file.timeframe) == expected


def test_names_of_unknown_content_are_listed(tmp_path: Path) -> None:
    for name in ("EURUSD-M15.csv", "EURUSD_M7.csv", "EURUSD_H1.csv"):
        (tmp_path / name).touch()
    assert problems_of(tmp_path).count("are not in its name") == 2
    (tmp_path / "empty").mkdir()
    assert "has no CSV files" in problems_of(tmp_path / "empty")


def test_every_timeframe_has_a_period() -> None:
    assert set(TIMEFRAMES.values()) <= set(PERIODS)


@pytest.mark.parametrize(
    ("base", "longer", "expected"),
    [
        ("M15", [], ("1 hour", "4 hours")),
        ("M15", ["H4"], ("1 hour", "4 hours")),
        ("M15", ["D1"], ("4 hours", "1 day")),
        ("M15", ["M30", "D1"], ("30 minutes", "1 day")),
        ("M15", ["M30", "H1", "H4", "D1"], ("1 hour", "4 hours")),
        ("H1", ["D1", "W1"], ("1 day", "1 week")),
    ],
)
def test_longer_timeframes_are_those_with_files(base: str, longer: list[str], expected: tuple[str, str]) -> None:
    assert choose_longer(base, longer) == expected


def test_exported_bars_have_the_features_of_aggregated_ones(folder: Path) -> None:
    read = read_folder(folder)
    assert read.timeframes == ("1 hour", "4 hours") and set(read.coarser_bars["EURUSD"]) == {"1 hour", "4 hours"}
    bars = read.rows.usable_bars()
    exported, aggregated = (tabulate(bars, read.timeframes, of) for of in (read.coarser_bars, None))
    np.testing.assert_array_equal(exported.position, aggregated.position)
    np.testing.assert_allclose(exported.features, aggregated.features, atol=1e-6)


def test_exported_bars_are_used_and_not_aggregated(folder: Path) -> None:
    earlier = random_bars(400, spacing="4h", seed=8).assign(time=lambda bars: bars["time"] - np.timedelta64(2000, "h"))
    history = earlier[earlier["time"] < FOURS["time"][0]]
    export(folder, "EURUSD_H4.csv", pd.concat([history, FOURS]))
    read = read_folder(folder)
    bars = read.rows.usable_bars()
    # The features of H4 are known from the first bar on; those of H1 after five hours, which are fewer than 26 bars.
    assert len(tabulate(bars, read.timeframes, read.coarser_bars).close) == len(bars) - 25
    assert len(tabulate(bars, read.timeframes).close) == len(bars) - 48


@pytest.mark.parametrize("cut", [100, 404, 401, 415, 899])
def test_no_input_knows_the_future_of_any_timeframe(cut: int) -> None:
    first_changed = QUARTERS["time"][cut]

    def features(of: pd.DataFrame, hours: pd.DataFrame, fours: pd.DataFrame) -> np.ndarray:
        table = tabulate(of, ("1 hour", "4 hours"), {"AAA": {"1 hour": hours, "4 hours": fours}})
        return table.features[table.row < cut]

    def change(longer: pd.DataFrame, length: str) -> pd.DataFrame:
        still_open = int((longer["time"] + pd.Timedelta(length) > first_changed).idxmax())
        return change_future(longer, still_open)

    changed = change_future(QUARTERS, cut), change(HOURS, "1h"), change(FOURS, "4h")
    expected = features(QUARTERS, HOURS, FOURS)
    assert len(expected) > cut - 50
    np.testing.assert_array_equal(features(*changed), expected)


def test_a_longer_bar_is_known_after_its_close() -> None:
    changed = HOURS.copy()
    changed.loc[50, "close"] *= 1.01
    tables = [tabulate(QUARTERS, ("1 hour", "4 hours"), {"AAA": {"1 hour": hours}}) for hours in (HOURS, changed)]
    differs = (tables[0].features != tables[1].features).any(axis=1)
    assert tables[0].row[differs][0] == 4 * 51  # the first bar after the 51st hour


def test_months_close_at_their_end_or_later() -> None:
    opens = np.array(["2024-02-01T00:00", "2024-02-29T22:00"], dtype="datetime64[s]")
    assert closes(opens, "1 month").astype(str).tolist() == ["2024-03-01T00:00:00", "2024-03-31T22:00:00"]


@pytest.mark.parametrize("layout", ["terminal", "package", "headless"])
def test_layouts_of_one_file_work_in_a_folder(tmp_path: Path, layout: str) -> None:
    export(tmp_path, "EURUSD_M15.csv", QUARTERS, layout)
    export(tmp_path, "EURUSD_H1.csv", HOURS, layout)
    read = read_folder(tmp_path)
    bars = read.rows.usable_bars()
    assert set(bars["symbol"]) == {"EURUSD"}
    pd.testing.assert_series_equal(bars["close"], QUARTERS["close"])
    pd.testing.assert_series_equal(read.coarser_bars["EURUSD"]["1 hour"]["time"], HOURS["time"], check_freq=False)


def test_symbols_are_no_one_series(tmp_path: Path) -> None:
    sampling = Sampling(seq_len=20, horizon=8, threshold=0.006, fold=None)
    labeled = load_bars(export_market(tmp_path / "mt5"), sampling)
    first, second = (labeled.parts[part] for part in ("train", "test"))
    for windows in labeled.parts.values():
        positions = windows.positions[windows.ends[:, None].numpy() + windows.offsets.numpy()]
        assert ((positions < 900).all(axis=1) | (positions >= 900).all(axis=1)).all()
        assert (positions < 900).any() and (positions >= 900).any()
    last_of_training = max(first.describe(index)["time"] for index in range(len(first)))
    assert last_of_training < min(second.describe(index)["time"] for index in range(len(second)))
    assert {first.describe(0)["symbol"], first.describe(len(first) - 1)["symbol"]} == {"EURUSD", "GBPUSD.a"}


def test_a_symbol_without_a_longer_timeframe(folder: Path) -> None:
    export(folder, "GBPUSD_M15.csv", random_bars(900, spacing="15min"))
    export(folder, "GBPUSD_D1.csv", DAYS)
    notes = "\n".join(read_folder(folder).notes)
    assert "there are no H1 files of GBPUSD: these bars are aggregated from M15" in notes
    assert "files of D1 are not used" in notes


def test_shorter_timeframes_than_the_base_are_not_used(folder: Path) -> None:
    assert any("files of M15 are not used" in note for note in read_folder(folder, "H1").notes)


def test_a_symbol_without_the_base_timeframe(folder: Path) -> None:
    export(folder, "GBPUSD_H1.csv", HOURS)
    text = problems_of(folder)
    assert "no M15 files of 1 symbol" in text and "GBPUSD has H1" in text and "--set timeframe=H1" in text
    assert read_folder(folder, "H1").rows.count == 2 * len(HOURS)


def test_a_name_that_its_bars_contradict(folder: Path) -> None:
    export(folder, "EURUSD_H4.csv", HOURS)
    assert "EURUSD_H4.csv: most of its bars open 60 minutes after the one before, not 240" in problems_of(folder)
    export(folder, "EURUSD_H4.csv", DAYS)
    assert "open 1440 minutes after the one before, not 240" in problems_of(folder)
    export(folder, "EURUSD_H4.csv", pd.concat([FOURS[:50], HOURS[203:]]))
    assert "of its bars open less than 240 minutes" in problems_of(folder)
    export(folder, "EURUSD_H4.csv", FOURS[:1])
    assert "has 1 usable bar, too few" in problems_of(folder)


def test_a_timeframe_in_several_files(folder: Path) -> None:
    expected = read_folder(folder).rows.usable_bars()
    (folder / "EURUSD_M15.csv").unlink()
    export(folder, "EURUSD_M15_2.csv".replace("_2", "_202401050000_202401101345"), QUARTERS[400:])
    export(folder, "EURUSD_M15_202401010000_202401042345.csv", QUARTERS[:400])
    pd.testing.assert_frame_equal(read_folder(folder).rows.usable_bars(), expected)
    export(folder, "EURUSD_M15_202401010000_202401042345.csv", QUARTERS[:450])
    text = problems_of(folder)
    assert "both have the time from 2024-01-05 04:00:00 to 2024-01-05 16:15:00; remove one" in text


def test_files_of_two_time_zones(folder: Path) -> None:
    later = FOURS.assign(time=FOURS["time"] + pd.Timedelta("3h"))
    export(folder, "EURUSD_H4.csv", later)
    assert "EURUSD H4 has its prices 3 hours after M15: the times are of different zones" in problems_of(folder)
    # With its offset in the file, the time is known.
    offset = later["time"].dt.strftime("%Y-%m-%d %H:%M+03:00")
    write_csv(folder / "EURUSD_H4.csv", later.assign(time=offset))
    assert read_folder(folder).timeframes == ("1 hour", "4 hours")


def test_prices_of_another_market(folder: Path) -> None:
    export(folder, "EURUSD_H4.csv", aggregate(random_bars(900, spacing="15min", seed=77), "4h"))
    assert any("perhaps of another source" in note for note in read_folder(folder).notes)


def test_timeframes_of_different_times(folder: Path) -> None:
    export(folder, "EURUSD_H4.csv", FOURS.assign(time=FOURS["time"] - pd.Timedelta("400D")))
    assert "EURUSD H4 and M15 have no time in common" in problems_of(folder)
    export(folder, "EURUSD_H4.csv", FOURS[:40])
    assert "bars of M15 lie in none of its bars" in problems_of(folder)
    export(folder, "EURUSD_H4.csv", FOURS.drop(index=30))
    assert any("16 of 900 bars of M15 lie in none of its bars; they see" in note for note in read_folder(folder).notes)
    export(folder, "EURUSD_H4.csv", FOURS[10:])
    assert any("160 bars of M15 are older than its first bar" in note for note in read_folder(folder).notes)


def test_gaps_are_noted(folder: Path) -> None:
    shifted = QUARTERS.assign(time=QUARTERS["time"].where(QUARTERS.index < 480, QUARTERS["time"] + pd.Timedelta("9D")))
    for path in folder.iterdir():
        path.unlink()
    export(folder, "EURUSD_M15.csv", shifted)
    assert any("EURUSD M15: 1 gap of more than a week" in note for note in read_folder(folder).notes)


def test_unusable_rows_of_all_files_are_listed(folder: Path) -> None:
    for name in ("EURUSD_M15.csv", "EURUSD_H4.csv"):
        path = folder / name
        lines = path.read_text().splitlines()
        lines[30] = lines[30].replace("2024.01", "2024.13")
        path.write_text("\n".join(lines))
    text = problems_of(folder)
    assert text.count("line 31: time '2024.13") == 2
    read = read_folder_with_rows(folder, BadRows("skip"))
    assert len(read.rows.usable_bars()) == 899


def test_another_symbol_in_the_file(folder: Path) -> None:
    write_csv(folder / "EURUSD_H4.csv", FOURS.assign(symbol="GBPUSD"))
    assert "EURUSD_H4.csv: its column symbol has 'GBPUSD'" in problems_of(folder)


def test_a_file_without_columns(folder: Path) -> None:
    (folder / "EURUSD_H4.csv").write_text("a,b\n1,2\n")
    assert "EURUSD_H4.csv: there is no column time" in problems_of(folder)


def test_timeframe_needs_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only a folder has bars of several timeframes"):
        Temporal(Options(timeframe="M15", data=write_csv(tmp_path / "bars.csv", QUARTERS))).data()
    with pytest.raises(UsageError) as caught:
        Options(timeframe="M7")
    assert "timeframe=M7: must be one of" in caught.value.problems[0]


def test_every_bar_is_predicted_and_an_unusable_row_has_its_file(tmp_path: Path) -> None:
    recipe = Temporal(Options(data=export_market(tmp_path / "mt5")))
    recipe.data()
    path = tmp_path / "mt5" / "GBPUSD.a_M15_202401010000_202401101345.csv"
    lines = path.read_text().splitlines()
    lines[-1] = lines[-1].replace(",", ",-", 1)
    path.write_text("\n".join(lines))
    inputs = list(recipe.inputs(tmp_path / "mt5"))
    assert inputs[-1].id == 1799 and inputs[-1].error.startswith(f"{path.name}: open -")
    assert {entry.value["symbol"] for entry in inputs} == {"EURUSD", "GBPUSD.a"}
    assert len(inputs) == 2 * 900 - 2 * (48 + 19)
    assert any("with H1 and H4" in note for note in recipe.notes())
