"""Synthetic bars for the tests."""

from pathlib import Path

import numpy as np
import pandas as pd


def random_bars(count: int = 600, *, symbol: str = "AAA", spacing: str = "1h", seed: int = 0) -> pd.DataFrame:
    """Return a random walk in the format of `read_bars`, starting on Monday, 2024-01-01."""
    random = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(random.normal(0, 0.01, count)))
    open_ = np.concatenate([[100.0], close[:-1]]) * (1 + random.normal(0, 0.002, count))
    frame = pd.DataFrame(
        {
            "symbol": symbol,
            "time": pd.date_range("2024-01-01", periods=count, freq=spacing, unit="us"),
            "open": open_,
            "high": np.maximum(open_, close) * (1 + random.uniform(0, 0.01, count)),
            "low": np.minimum(open_, close) * (1 - random.uniform(0, 0.01, count)),
            "close": close,
            "volume": random.integers(0, 1000, count).astype("float64"),
        }
    )
    return frame.astype({"symbol": "category"})


def concatenate(*frames: pd.DataFrame) -> pd.DataFrame:
    """Concatenate the bars of several symbols, given in alphabetical order."""
    return pd.concat([frame.astype({"symbol": "str"}) for frame in frames], ignore_index=True).astype(
        {"symbol": "category"}
    )


def change_future(bars: pd.DataFrame, cut: int, seed: int = 1) -> pd.DataFrame:
    """Return the same bars up to the row `cut`, and different ones from there on."""
    future = random_bars(len(bars) - cut, seed=seed)
    changed = bars.copy()
    for name in ("open", "high", "low", "close", "volume"):
        changed.loc[cut:, name] = 3 * future[name].to_numpy()
    return changed


def write_csv(path: Path, bars: pd.DataFrame) -> Path:
    """Write the bars and return the path."""
    bars.to_csv(path, index=False)
    return path
