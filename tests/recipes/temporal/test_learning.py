"""A run learns the signal in a series, and does not exceed the accuracy that the signal permits."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.sessions import session
from tests.slow import slow_except

from .market import write_csv

SIGNAL_SHARE = 0.8
CEILING = SIGNAL_SHARE + (1 - SIGNAL_SHARE) / 3
"""Expected accuracy of a model that knows the rule."""


def generate_series(*, with_signal: bool, count: int = 1600) -> pd.DataFrame:
    """Return daily bars that rise, stay or fall by 2 % with equal frequency.

    With a signal, the volume of a bar determines the next move for `SIGNAL_SHARE` of all bars; all other moves are
    random.
    """
    generator = np.random.default_rng(5)
    moves, signal, noise = generator.integers(-1, 2, (3, count))
    follows_signal = (generator.random(count) < SIGNAL_SHARE) & with_signal
    moves = np.where(follows_signal, signal, noise)
    close = 100 * np.exp(np.concatenate([[0.0], np.cumsum(0.02 * moves + generator.normal(0, 1e-3, count))[:-1]]))
    open_ = np.concatenate([[100.0], close[:-1]])
    return pd.DataFrame(
        {
            "time": pd.date_range("2015-01-05", periods=count, freq="1D", unit="us"),
            "open": open_,
            "high": np.maximum(open_, close) * 1.001,
            "low": np.minimum(open_, close) * 0.999,
            "close": close,
            "volume": 1000.0 * np.exp(signal),
        }
    )


def train_and_test(tmp_path: Path, bars: pd.DataFrame, architecture: str) -> dict[str, Any]:
    values = {
        "data": str(write_csv(tmp_path / "bars.csv", bars)),
        "architecture": architecture,
        "size": "tiny",
        "seq_len": 4,
        "horizon": 1,
        "epochs": 10,
        "effective_batch": 32,
        "learning_rate": 1e-2,
        "dropout": 0.0,
        "save_every_updates": 1000,
    }
    assert session("temporal", tmp_path / "run", values).status == "finished"
    metrics: dict[str, Any] = json.loads((tmp_path / "run" / "state.json").read_text())["metrics"]["test"]
    return metrics


@pytest.mark.parametrize("architecture", slow_except(["lstm", "transformer", "mlp", "ensemble"], "mlp"))
def test_a_signal_is_learned_up_to_its_ceiling(tmp_path: Path, architecture: str) -> None:
    metrics = train_and_test(tmp_path, generate_series(with_signal=True), architecture)
    assert metrics["accuracy"] > metrics["majority_accuracy"] + 0.25, metrics
    assert metrics["accuracy"] < CEILING + 3 * metrics["accuracy_error"], metrics


@pytest.mark.parametrize("architecture", slow_except(["mlp", "ensemble"], "mlp"))
def test_nothing_is_learned_from_a_random_series(tmp_path: Path, architecture: str) -> None:
    metrics = train_and_test(tmp_path, generate_series(with_signal=False), architecture)
    assert metrics["accuracy"] < 1 / 3 + 3 * metrics["accuracy_error"], metrics
