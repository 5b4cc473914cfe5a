import numpy as np
import pandas as pd
import pytest

from shoestring_recipes.temporal import timeframes

from .market import concatenate, random_bars


@pytest.mark.parametrize(
    ("spacing", "expected"),
    [
        ("1min", ("15 minutes", "1 hour")),
        ("15min", ("1 hour", "4 hours")),
        ("1h", ("4 hours", "1 day")),
        ("4h", ("1 day", "1 week")),
        ("1D", ("1 week", "1 month")),
        ("7D", ("1 month", "1 quarter")),
        ("31D", ("1 quarter", "1 year")),
    ],
)
def test_timeframes_depend_on_the_spacing(spacing: str, expected: tuple[str, str]) -> None:
    assert (
        timeframes.choose_timeframes(
            concatenate(random_bars(50, spacing=spacing), random_bars(50, symbol="B", spacing=spacing))
        )
        == expected
    )
    assert set(expected) <= set(timeframes.PERIODS)


@pytest.mark.parametrize(
    ("period", "alias"),
    [
        ("1 day", "D"),
        ("1 week", "W"),
        ("1 month", "M"),
        ("1 quarter", "Q"),
        ("1 year", "Y"),
        ("1 hour", "h"),
    ],
)
def test_periods_follow_the_calendar(period: str, alias: str) -> None:
    bars = random_bars(3000, spacing="7h")
    _, rows = timeframes.resample(bars, period)
    calendar = bars["time"].dt.to_period(alias)
    assert (np.diff(rows) == (calendar != calendar.shift()).to_numpy()[1:]).all()


def test_a_coarser_bar_aggregates_its_bars() -> None:
    bars = random_bars(10)  # hourly from midnight: periods of 4, 4 and 2 bars
    coarser, rows = timeframes.resample(bars, "4 hours")
    assert list(rows) == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    second = bars[4:8]
    expected = [second["open"].iloc[0], second["high"].max(), second["low"].min(), second["close"].iloc[-1]]
    assert coarser.loc[1, ["open", "high", "low", "close"]].tolist() == expected
    assert coarser.loc[1, "volume"] == second["volume"].sum()


def test_a_coarser_bar_is_used_from_the_next_period() -> None:
    bars = random_bars(10)
    coarser, rows = timeframes.resample(bars, "4 hours")
    last_close = timeframes.last_closed(coarser[["close"]], rows)["close"]
    assert last_close[:4].isna().all()  # including the fourth bar, which closes at the same time
    assert (last_close[4:8] == bars["close"][3]).all()
    assert (last_close[8:] == bars["close"][7]).all()


def test_an_empty_period_is_skipped() -> None:
    bars = random_bars(12).drop(index=[4, 5, 6, 7]).reset_index(drop=True)
    coarser, rows = timeframes.resample(bars, "4 hours")
    assert list(timeframes.last_closed(coarser[["close"]], rows)["close"][4:]) == [bars["close"][3]] * 4


def test_times_before_1970_are_resampled() -> None:
    bars = random_bars(60, spacing="1D").assign(time=pd.date_range("1969-12-01", periods=60, freq="1D"))
    _, rows = timeframes.resample(bars, "1 week")
    assert (np.diff(rows) == (bars["time"].dt.day_of_week == 0).to_numpy()[1:]).all()
