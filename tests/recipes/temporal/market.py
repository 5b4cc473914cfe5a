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


def aggregate(bars: pd.DataFrame, spacing: str) -> pd.DataFrame:
    """Return one symbol's bars in a longer timeframe, as a terminal has them: the time is that of the opening."""
    functions = {"open": "first", "high": "max", "low": "min", "close": "last", "volume": "sum"}
    return bars.groupby(bars["time"].dt.floor(spacing)).agg(functions).reset_index()


def export(folder: Path, name: str, bars: pd.DataFrame, layout: str = "terminal") -> Path:
    """Write bars as MetaTrader 5 does: its terminal, its Python package with the time in seconds, or without header."""
    folder.mkdir(exist_ok=True)
    numbers = bars[["open", "high", "low", "close"]]
    volume, time = bars["volume"].astype("int64"), bars["time"]
    if layout == "package":
        seconds = time.to_numpy().astype("datetime64[s]").astype("int64")
        frame = pd.DataFrame({"time": seconds, **numbers, "tick_volume": volume, "spread": 2, "real_volume": 0})
        frame.to_csv(folder / name, index=False)
        return folder / name
    day, clock = time.dt.strftime("%Y.%m.%d"), time.dt.strftime("%H:%M:%S")
    columns = ("OPEN", "HIGH", "LOW", "CLOSE")
    values = dict(zip(columns, (numbers[name.lower()] for name in columns), strict=True))
    frame = pd.DataFrame({"DATE": day, "TIME": clock, **values, "TICKVOL": volume, "VOL": 0, "SPREAD": 2})
    frame = frame.rename(columns=lambda name: f"<{name}>")
    is_headless = layout == "headless"
    frame.to_csv(folder / name, index=False, sep="," if is_headless else "\t", header=not is_headless)
    return folder / name


def export_market(folder: Path, count: int = 900) -> Path:
    """Write two symbols in two timeframes, M15 and H1, and return the folder."""
    for seed, (symbol, layout) in enumerate([("EURUSD", "terminal"), ("GBPUSD.a", "package")]):
        bars = random_bars(count, spacing="15min", seed=seed)
        export(folder, f"{symbol}_M15_202401010000_202401101345.csv", bars, layout)
        export(folder, f"{symbol}_H1.csv", aggregate(bars, "1h"), layout)
    return folder
