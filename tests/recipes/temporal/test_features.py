import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring_recipes.temporal.features import FEATURES, LOOK_BACK, compute_features

from .market import change_future, random_bars

HOURLY = random_bars(240)
DAILY = random_bars(240, spacing="1D", seed=3)


def test_there_are_29_features_in_a_fixed_order() -> None:
    assert len(FEATURES) == len(set(FEATURES)) == 29
    assert tuple(compute_features(HOURLY, "4 hours", "1 day").columns) == FEATURES


@settings(max_examples=40, deadline=None, derandomize=True)
@given(cut=st.integers(1, 239), seed=st.integers(0, 10**6))
def test_no_feature_knows_the_future(cut: int, seed: int) -> None:
    for bars, middle, coarse in ((HOURLY, "4 hours", "1 day"), (DAILY, "1 week", "1 month")):
        expected = compute_features(bars, middle, coarse)[:cut]
        pd.testing.assert_frame_equal(compute_features(change_future(bars, cut, seed), middle, coarse)[:cut], expected)


def test_every_feature_depends_on_the_past() -> None:
    differs = (
        compute_features(change_future(HOURLY, 120), "4 hours", "1 day")[120:]
        != compute_features(HOURLY, "4 hours", "1 day")[120:]
    )
    assert differs.any().all(), differs.any()


def test_features_do_not_depend_on_the_price_scale() -> None:
    prices = ["open", "high", "low", "close"]
    scaled = HOURLY.assign(**{name: 8 * HOURLY[name] for name in prices})
    pd.testing.assert_frame_equal(
        compute_features(scaled, "4 hours", "1 day"), compute_features(HOURLY, "4 hours", "1 day")
    )


def test_the_undefined_start_is_as_long_as_documented() -> None:
    base, middle, coarse = LOOK_BACK
    undefined = compute_features(HOURLY, "4 hours", "1 day").isna().any(axis=1).to_numpy()
    assert undefined.sum() == max(base - 1, 4 * middle, 24 * coarse)
    assert not undefined[undefined.sum() :].any()
    undefined = compute_features(HOURLY, "1 hour", "1 hour").isna().any(axis=1).to_numpy()
    assert undefined.sum() == base - 1


def test_features_of_a_constant_market_are_zero() -> None:
    constant = HOURLY.assign(open=5.0, high=5.0, low=5.0, close=5.0, volume=0.0)
    features = compute_features(constant, "4 hours", "1 day").dropna()
    assert len(features) > 100
    assert (features == 0).all(axis=None)


def test_features_by_hand() -> None:
    features = compute_features(HOURLY, "4 hours", "1 day")
    bar, close = 200, HOURLY["close"].to_numpy()
    assert features["return_5"][bar] == pytest.approx(close[bar] / close[bar - 5] - 1)
    assert features["sma20_ratio"][bar] == pytest.approx(close[bar] / close[bar - 19 : bar + 1].mean() - 1)
    body = (HOURLY["close"] - HOURLY["open"]) / (HOURLY["high"] - HOURLY["low"])
    assert features["body"][bar] == pytest.approx(body[bar])
    assert (features["upper_wick"] + features["body"].abs() + features["lower_wick"])[bar] == pytest.approx(1)
    # The last day that had closed before bar 200 (day 8) is day 7.
    assert features["coarse_return"][bar] == pytest.approx(close[8 * 24 - 1] / close[7 * 24 - 1] - 1)
    # The last four hours that had closed before bar 200 (its period begins with it) end with bar 199.
    assert features["middle_return"][bar] == pytest.approx(close[199] / close[195] - 1)


def test_smart_money_features_by_hand() -> None:
    count = 120
    bars = random_bars(count).assign(open=100.0, close=100.0, high=101.0, low=99.0)
    columns = ["open", "high", "low", "close"]
    bars.loc[100, columns] = [100.0, 100.5, 99.1, 99.2]  # falls ...
    bars.loc[101, columns] = [99.2, 108.0, 99.2, 107.0]  # ... before a strong rise that leaves the range
    bars.loc[102, columns] = [107.0, 110.0, 105.0, 109.0]  # whose low is above the high of two bars before
    features = compute_features(bars, "1 hour", "1 hour")
    assert list(features["structure_break"][99:104]) == [0, 0, 1, 1, 0]
    assert list(features["structure"][99:104]) == [0, 0, 1, 1, 1]
    assert (features["fair_value_gap"][50:102] == 0).all()
    atr = features["atr14"] * bars["close"]
    assert features["fair_value_gap"][102] == pytest.approx((105.0 - 100.5) / atr[102])
    assert (features["order_block_up"][:101] == 0).all()
    assert features["order_block_up"][101] == pytest.approx((107.0 - 99.8) / atr[101])
    assert (features["order_block_down"][:103] == 0).all()


def test_relative_strength_of_monotonic_prices() -> None:
    rising = HOURLY.assign(close=np.linspace(100, 200, len(HOURLY)))
    falling = HOURLY.assign(close=np.linspace(200, 100, len(HOURLY)))
    assert compute_features(rising, "4 hours", "1 day")["rsi14"].iloc[-1] == pytest.approx(1)
    assert compute_features(falling, "4 hours", "1 day")["rsi14"].iloc[-1] == pytest.approx(-1)
