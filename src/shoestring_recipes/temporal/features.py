"""The 29 input features of a bar, computed from the bar itself and the past in three timeframes.

All are ratios or bounded, so that they are comparable across symbols and years at different prices. A feature is 0 if
its denominator is 0 (no range, no movement), and NaN if the history is too short.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from shoestring_recipes.temporal import timeframes

if TYPE_CHECKING:
    import pandas as pd

    Series: TypeAlias = pd.Series[float]

FEATURES = (
    # the bars themselves
    "return_1",  # change of the close over 1 bar
    "return_5",  # ... over 5 bars
    "return_15",  # ... over 15 bars
    "sma20_ratio",  # close above its mean of 20 bars
    "macd",  # mean of the close over 12 bars above that over 26, exponential, in closes
    "rsi14",  # Wilder's relative strength over 14 bars, from -1 (only losses) to 1 (only gains)
    "atr14",  # Wilder's average true range over 14 bars, in closes
    "volatility20",  # standard deviation of return_1 over 20 bars
    "body",  # close above open, in ranges of the bar
    "upper_wick",  # high above the body, in ranges of the bar
    "lower_wick",  # low below the body, in ranges of the bar
    "range",  # the bar's range in average true ranges
    "channel20",  # where the close lies between low and high of 20 bars, from -1 to 1
    "volume20",  # logarithm of the volume (and 1) above its mean of 20 bars
    "order_block_up",  # close above the last falling bar before a strong rise, in average true ranges
    "order_block_down",  # close above the last rising bar before a strong fall, in average true ranges
    "fair_value_gap",  # gap between this bar and the one before the last, in average true ranges, signed
    "structure_break",  # 1 where the close leaves the 20 bars before upwards, -1 downwards, else 0
    "structure",  # direction of the last such break
    # the middle timeframe's last closed bar
    "middle_return",  # change of its close
    "middle_sma5_ratio",  # its close above its mean of 5
    "middle_range",  # its range in closes
    "middle_channel5",  # where its close lies between low and high of 5, from -1 to 1
    # the coarse timeframe's last closed bar
    "coarse_return",
    "coarse_sma3_ratio",
    "coarse_range",
    # do the three agree? from -1 (all down) to 1 (all up)
    "agree_return",  # mean of the signs of the three returns
    "agree_trend",  # mean of the signs of the three closes above their means
    "agree_structure",  # structure times the sign of the coarse trend
)

LOOK_BACK = (26, 5, 3)
"""Number of bars, closed middle bars and closed coarse bars after which all features are defined."""

MAX_DISTANCE = 10.0
"""Largest distance of an order block in average true ranges; larger ones are clipped."""


def compute_features(
    bars: pd.DataFrame, middle: str, coarse: str, coarser_bars: Mapping[str, pd.DataFrame] | None = None
) -> pd.DataFrame:
    """Return the `FEATURES` of one symbol's bars (ascending in time), one row each, float64.

    `middle` and `coarse` are periods of `timeframes.PERIODS`. `coarser_bars` has the symbol's bars of a period,
    ascending in time; those of a period that is not in it are aggregated from `bars`.
    """
    bars, coarser_bars = bars.reset_index(drop=True), coarser_bars or {}
    features = _base_features(bars)
    for period, name, span in ((middle, "middle", 5), (coarse, "coarse", 3)):
        features |= _coarser_features(bars, coarser_bars.get(period), period, name, span)
    features |= {
        "agree_return": _agreement(features["return_1"], features["middle_return"], features["coarse_return"]),
        "agree_trend": _agreement(
            features["sma20_ratio"], features["middle_sma5_ratio"], features["coarse_sma3_ratio"]
        ),
        "agree_structure": features["structure"] * _side(features["coarse_sma3_ratio"]),
    }
    return bars[[]].assign(**features)[list(FEATURES)]


def _base_features(bars: pd.DataFrame) -> dict[str, Series]:
    open_, high, low, close = bars["open"], bars["high"], bars["low"], bars["close"]
    body = close - open_
    top, bottom = open_.where(body < 0, close), open_.where(body > 0, close)
    gain = close.diff()
    up, down = _wilder_mean(gain.clip(lower=0)), _wilder_mean(-gain.clip(upper=0))
    previous_close = close.shift()
    atr = _wilder_mean(
        high.mask(previous_close > high, previous_close) - low.mask(previous_close < low, previous_close)
    )
    volume = np.log1p(bars["volume"])
    change = close.pct_change()
    broken = _side(close, low.rolling(20).min().shift(), high.rolling(20).max().shift())
    return {
        "return_1": change,
        "return_5": close.pct_change(5),
        "return_15": close.pct_change(15),
        "sma20_ratio": close / close.rolling(20).mean() - 1,
        "macd": (_exponential_mean(close, 12) - _exponential_mean(close, 26)) / close,
        "rsi14": _ratio(up - down, up + down),
        "atr14": atr / close,
        "volatility20": change.rolling(20).std(),
        "body": _ratio(body, high - low),
        "upper_wick": _ratio(high - top, high - low),
        "lower_wick": _ratio(bottom - low, high - low),
        "range": _ratio(high - low, atr),
        "channel20": _channel(bars, 20),
        "volume20": volume - volume.rolling(20).mean(),
        "order_block_up": _order_block(bars, atr, 1),
        "order_block_down": _order_block(bars, atr, -1),
        "fair_value_gap": _ratio((low - high.shift(2)).clip(lower=0) - (low.shift(2) - high).clip(lower=0), atr),
        "structure_break": broken,
        "structure": broken.where(broken != 0).ffill().fillna(0.0),
    }


def _coarser_features(
    bars: pd.DataFrame, coarser_bars: pd.DataFrame | None, period: str, name: str, span: int
) -> dict[str, Series]:
    if coarser_bars is None:
        coarser, rows = timeframes.resample(bars, period)
    else:
        coarser = coarser_bars.reset_index(drop=True)
    close = coarser["close"]
    features = coarser[[]].assign(
        **{
            f"{name}_return": close.pct_change(),
            f"{name}_sma{span}_ratio": close / close.rolling(span).mean() - 1,
            f"{name}_range": (coarser["high"] - coarser["low"]) / close,
            f"{name}_channel{span}": _channel(coarser, span),
        }
    )
    if coarser_bars is None:
        features = timeframes.last_closed(features, rows)
    else:
        opens, times = (frame["time"].to_numpy() for frame in (coarser, bars))
        features = timeframes.last_closed_at(features, opens, period, times)
    return {str(column): values for column, values in features.items()}


def _ratio(part: Series, whole: Series) -> Series:
    """Return `part / whole`, or 0 if `whole` is 0."""
    return (part / whole.where(whole != 0)).mask(whole == 0, 0.0)


def _wilder_mean(values: Series, span: int = 14) -> Series:
    return values.ewm(alpha=1 / span, adjust=False, min_periods=span).mean()


def _exponential_mean(values: Series, span: int) -> Series:
    return values.ewm(span=span, adjust=False, min_periods=span).mean()


def _channel(bars: pd.DataFrame, span: int) -> Series:
    """Return the position of the close between the lowest low (-1) and the highest high (1) of `span` bars."""
    low, high = bars["low"].rolling(span).min(), bars["high"].rolling(span).max()
    return _ratio(2 * bars["close"] - low - high, high - low)


def _order_block(bars: pd.DataFrame, atr: Series, direction: int) -> Series:
    """Return the distance of the close above the middle of the last order block, 0 before the first block.

    A block is a bar against the `direction`, followed by a body of more than one average true range in the direction.
    It is only known when that second bar closes, so it takes effect there and not at the block itself.
    """
    body = direction * (bars["close"] - bars["open"])
    confirmed = (body > atr.shift()) & (body.shift() < 0)
    middle = ((bars["high"] + bars["low"]) / 2).shift().where(confirmed).ffill()
    return _ratio(bars["close"] - middle, atr).clip(-MAX_DISTANCE, MAX_DISTANCE).fillna(0.0)


def _side(values: Series, low: Series | float = 0.0, high: Series | float = 0.0) -> Series:
    """Return 1 above `high`, -1 below `low`, else 0."""
    return (values > high).astype("float64") - (values < low).astype("float64")


def _agreement(base: Series, middle: Series, coarse: Series) -> Series:
    return (_side(base) + _side(middle) + _side(coarse)) / 3
