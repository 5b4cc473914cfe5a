import numpy as np
import pandas as pd
import pytest

from shoestring.recipes.temporal import timeframes

from .market import candles, several


@pytest.mark.parametrize(
    ("every", "expected"),
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
def test_the_coarser_timeframes_follow_the_spacing(every: str, expected: tuple[str, str]) -> None:
    assert timeframes.choose(several(candles(50, every=every), candles(50, symbol="B", every=every))) == expected
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
def test_periods_are_those_of_the_calendar(period: str, alias: str) -> None:
    bars = candles(3000, every="7h")
    _, rows = timeframes.coarser(bars, period)
    calendar = bars["time"].dt.to_period(alias)
    assert (np.diff(rows) == (calendar != calendar.shift()).to_numpy()[1:]).all()


def test_a_coarser_bar_is_made_of_its_bars() -> None:
    bars = candles(10)  # hours from midnight on: 4, 4, and 2 of a third
    coarser, rows = timeframes.coarser(bars, "4 hours")
    assert list(rows) == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    second = bars[4:8]
    expected = [second["open"].iloc[0], second["high"].max(), second["low"].min(), second["close"].iloc[-1]]
    assert coarser.loc[1, ["open", "high", "low", "close"]].tolist() == expected
    assert coarser.loc[1, "volume"] == second["volume"].sum()


def test_a_coarser_bar_is_seen_only_from_the_next_period_on() -> None:
    bars = candles(10)
    coarser, rows = timeframes.coarser(bars, "4 hours")
    seen = timeframes.closed(coarser[["close"]], rows)["close"]
    assert seen[:4].isna().all()  # also not by the last of the four, at whose close it closes
    assert (seen[4:8] == bars["close"][3]).all()
    assert (seen[8:] == bars["close"][7]).all()


def test_a_period_without_bars_does_not_open_the_one_before_it() -> None:
    bars = candles(12).drop(index=[4, 5, 6, 7]).reset_index(drop=True)
    coarser, rows = timeframes.coarser(bars, "4 hours")
    assert list(timeframes.closed(coarser[["close"]], rows)["close"][4:]) == [bars["close"][3]] * 4


def test_times_before_1970_are_in_order_too() -> None:
    bars = candles(60, every="1D").assign(time=pd.date_range("1969-12-01", periods=60, freq="1D"))
    _, rows = timeframes.coarser(bars, "1 week")
    assert (np.diff(rows) == (bars["time"].dt.day_of_week == 0).to_numpy()[1:]).all()
