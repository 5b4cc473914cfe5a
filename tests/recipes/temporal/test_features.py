import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.recipes.temporal.features import FEATURES, LOOK_BACK, features

from .market import candles, otherwise_from

HOURLY = candles(240)
DAILY = candles(240, every="1D", seed=3)


def test_there_are_29_features_and_they_come_in_their_order() -> None:
    assert len(FEATURES) == len(set(FEATURES)) == 29
    assert tuple(features(HOURLY, "4 hours", "1 day").columns) == FEATURES


@settings(max_examples=40, deadline=None, derandomize=True)
@given(cut=st.integers(1, 239), seed=st.integers(0, 10**6))
def test_no_feature_knows_the_future(cut: int, seed: int) -> None:
    for bars, middle, coarse in ((HOURLY, "4 hours", "1 day"), (DAILY, "1 week", "1 month")):
        before = features(bars, middle, coarse)[:cut]
        pd.testing.assert_frame_equal(features(otherwise_from(bars, cut, seed), middle, coarse)[:cut], before)


def test_every_feature_knows_its_own_past() -> None:
    found = (
        features(otherwise_from(HOURLY, 120), "4 hours", "1 day")[120:] != features(HOURLY, "4 hours", "1 day")[120:]
    )
    assert found.any().all(), found.any()


def test_features_do_not_depend_on_the_prices_unit() -> None:
    prices = ["open", "high", "low", "close"]
    scaled = HOURLY.assign(**{name: 8 * HOURLY[name] for name in prices})
    pd.testing.assert_frame_equal(features(scaled, "4 hours", "1 day"), features(HOURLY, "4 hours", "1 day"))


def test_only_a_beginning_is_undefined_and_it_is_as_long_as_said() -> None:
    base, middle, coarse = LOOK_BACK
    undefined = features(HOURLY, "4 hours", "1 day").isna().any(axis=1).to_numpy()
    assert undefined.sum() == max(base - 1, 4 * middle, 24 * coarse)
    assert not undefined[undefined.sum() :].any()
    undefined = features(HOURLY, "1 hour", "1 hour").isna().any(axis=1).to_numpy()
    assert undefined.sum() == base - 1


def test_a_market_that_stands_still_is_all_zeros() -> None:
    still = HOURLY.assign(open=5.0, high=5.0, low=5.0, close=5.0, volume=0.0)
    found = features(still, "4 hours", "1 day").dropna()
    assert len(found) > 100
    assert (found == 0).all(axis=None)


def test_a_few_features_by_hand() -> None:
    found = features(HOURLY, "4 hours", "1 day")
    bar, close = 200, HOURLY["close"].to_numpy()
    assert found["return_5"][bar] == pytest.approx(close[bar] / close[bar - 5] - 1)
    assert found["sma20_ratio"][bar] == pytest.approx(close[bar] / close[bar - 19 : bar + 1].mean() - 1)
    body = (HOURLY["close"] - HOURLY["open"]) / (HOURLY["high"] - HOURLY["low"])
    assert found["body"][bar] == pytest.approx(body[bar])
    assert (found["upper_wick"] + found["body"].abs() + found["lower_wick"])[bar] == pytest.approx(1)
    # The last day that had closed before bar 200 (day 8) is day 7.
    assert found["coarse_return"][bar] == pytest.approx(close[8 * 24 - 1] / close[7 * 24 - 1] - 1)
    # The last four hours that had closed before bar 200 (its period begins with it) end with bar 199.
    assert found["middle_return"][bar] == pytest.approx(close[199] / close[195] - 1)


def test_smart_money_features_by_hand() -> None:
    count = 120
    bars = candles(count).assign(open=100.0, close=100.0, high=101.0, low=99.0)
    columns = ["open", "high", "low", "close"]
    bars.loc[100, columns] = [100.0, 100.5, 99.1, 99.2]  # falls ...
    bars.loc[101, columns] = [99.2, 108.0, 99.2, 107.0]  # ... before a strong rise that leaves the range
    bars.loc[102, columns] = [107.0, 110.0, 105.0, 109.0]  # whose low is above the high of two bars before
    found = features(bars, "1 hour", "1 hour")
    assert list(found["structure_break"][99:104]) == [0, 0, 1, 1, 0]
    assert list(found["structure"][99:104]) == [0, 0, 1, 1, 1]
    assert (found["fair_value_gap"][50:102] == 0).all()
    atr = found["atr14"] * bars["close"]
    assert found["fair_value_gap"][102] == pytest.approx((105.0 - 100.5) / atr[102])
    assert (found["order_block_up"][:101] == 0).all()
    assert found["order_block_up"][101] == pytest.approx((107.0 - 99.8) / atr[101])
    assert (found["order_block_down"][:103] == 0).all()


def test_relative_strength_is_1_where_all_rises_and_minus_1_where_all_falls() -> None:
    rising = HOURLY.assign(close=np.linspace(100, 200, len(HOURLY)))
    falling = HOURLY.assign(close=np.linspace(200, 100, len(HOURLY)))
    assert features(rising, "4 hours", "1 day")["rsi14"].iloc[-1] == pytest.approx(1)
    assert features(falling, "4 hours", "1 day")["rsi14"].iloc[-1] == pytest.approx(-1)
