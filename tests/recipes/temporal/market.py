"""Bars of an invented market for the tests."""

from pathlib import Path

import numpy as np
import pandas as pd


def candles(count: int = 600, *, symbol: str = "AAA", every: str = "1h", seed: int = 0) -> pd.DataFrame:
    """A random walk as `read_bars` gives it, from Monday 2024-01-01 on."""
    draw = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(draw.normal(0, 0.01, count)))
    opened = np.concatenate([[100.0], close[:-1]]) * (1 + draw.normal(0, 0.002, count))
    frame = pd.DataFrame(
        {
            "symbol": symbol,
            "time": pd.date_range("2024-01-01", periods=count, freq=every, unit="us"),
            "open": opened,
            "high": np.maximum(opened, close) * (1 + draw.uniform(0, 0.01, count)),
            "low": np.minimum(opened, close) * (1 - draw.uniform(0, 0.01, count)),
            "close": close,
            "volume": draw.integers(0, 1000, count).astype("float64"),
        }
    )
    return frame.astype({"symbol": "category"})


def several(*frames: pd.DataFrame) -> pd.DataFrame:
    """Bars of several symbols, given in the order of their names."""
    return pd.concat([frame.astype({"symbol": "str"}) for frame in frames], ignore_index=True).astype(
        {"symbol": "category"}
    )


def otherwise_from(bars: pd.DataFrame, cut: int, seed: int = 1) -> pd.DataFrame:
    """The same bars up to the row `cut`, another future from there on."""
    future = candles(len(bars) - cut, seed=seed)
    changed = bars.copy()
    for name in ("open", "high", "low", "close", "volume"):
        changed.loc[cut:, name] = 3 * future[name].to_numpy()
    return changed


def written(path: Path, bars: pd.DataFrame) -> Path:
    bars.to_csv(path, index=False)
    return path
