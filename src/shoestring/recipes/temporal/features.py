"""What a model sees of a bar: 29 numbers from the bar itself and the past, of three timeframes.

All are ratios or bounded, so that symbols and years at different prices are alike. Where a division has no answer
(no range, no movement) the feature is 0; where the past does not reach back far enough it is NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from shoestring.recipes.temporal import timeframes

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
"""A bar has all its features from so many bars, closed middle and closed coarse bars on."""

FARTHEST = 10.0
"""An order block farther away than this many average true ranges is only "far away"."""


def features(bars: pd.DataFrame, middle: str, coarse: str) -> pd.DataFrame:
    """The `FEATURES` of one symbol's bars (ascending in time), one row each, float64.

    `middle` and `coarse` are periods of `timeframes.PERIODS`.
    """
    bars = bars.reset_index(drop=True)
    found = _base(bars) | _coarser(bars, middle, "middle", 5) | _coarser(bars, coarse, "coarse", 3)
    found |= {
        "agree_return": _agreement(found["return_1"], found["middle_return"], found["coarse_return"]),
        "agree_trend": _agreement(found["sma20_ratio"], found["middle_sma5_ratio"], found["coarse_sma3_ratio"]),
        "agree_structure": found["structure"] * _side(found["coarse_sma3_ratio"]),
    }
    return bars[[]].assign(**found)[list(FEATURES)]


def _base(bars: pd.DataFrame) -> dict[str, Series]:
    opened, high, low, close = bars["open"], bars["high"], bars["low"], bars["close"]
    body = close - opened
    top, bottom = opened.where(body < 0, close), opened.where(body > 0, close)
    gain = close.diff()
    up, down = _wilder(gain.clip(lower=0)), _wilder(-gain.clip(upper=0))
    before = close.shift()
    atr = _wilder(high.mask(before > high, before) - low.mask(before < low, before))
    volume = np.log1p(bars["volume"])
    change = close.pct_change()
    broken = _side(close, low.rolling(20).min().shift(), high.rolling(20).max().shift())
    return {
        "return_1": change,
        "return_5": close.pct_change(5),
        "return_15": close.pct_change(15),
        "sma20_ratio": close / close.rolling(20).mean() - 1,
        "macd": (_exponential(close, 12) - _exponential(close, 26)) / close,
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


def _coarser(bars: pd.DataFrame, period: str, name: str, span: int) -> dict[str, Series]:
    coarser, rows = timeframes.coarser(bars, period)
    close = coarser["close"]
    shape = coarser[[]].assign(
        **{
            f"{name}_return": close.pct_change(),
            f"{name}_sma{span}_ratio": close / close.rolling(span).mean() - 1,
            f"{name}_range": (coarser["high"] - coarser["low"]) / close,
            f"{name}_channel{span}": _channel(coarser, span),
        }
    )
    return {str(column): values for column, values in timeframes.closed(shape, rows).items()}


def _ratio(part: Series, whole: Series) -> Series:
    """`part / whole`, 0 where `whole` is 0."""
    return (part / whole.where(whole != 0)).mask(whole == 0, 0.0)


def _wilder(values: Series, span: int = 14) -> Series:
    return values.ewm(alpha=1 / span, adjust=False, min_periods=span).mean()


def _exponential(values: Series, span: int) -> Series:
    return values.ewm(span=span, adjust=False, min_periods=span).mean()


def _channel(bars: pd.DataFrame, span: int) -> Series:
    """Where the close lies between the lowest low (-1) and the highest high (1) of `span` bars."""
    low, high = bars["low"].rolling(span).min(), bars["high"].rolling(span).max()
    return _ratio(2 * bars["close"] - low - high, high - low)


def _order_block(bars: pd.DataFrame, atr: Series, direction: int) -> Series:
    """How far the close is above the middle of the last order block, 0 while there was none.

    A block is a bar against the `direction` followed by a body along it of more than one average true range. It is
    known when that second bar closes, so it is dated there and not at the block itself.
    """
    body = direction * (bars["close"] - bars["open"])
    confirmed = (body > atr.shift()) & (body.shift() < 0)
    middle = ((bars["high"] + bars["low"]) / 2).shift().where(confirmed).ffill()
    return _ratio(bars["close"] - middle, atr).clip(-FARTHEST, FARTHEST).fillna(0.0)


def _side(values: Series, low: Series | float = 0.0, high: Series | float = 0.0) -> Series:
    """1 above `high`, -1 below `low`, else 0."""
    return (values > high).astype("float64") - (values < low).astype("float64")


def _agreement(base: Series, middle: Series, coarse: Series) -> Series:
    return (_side(base) + _side(middle) + _side(coarse)) / 3
