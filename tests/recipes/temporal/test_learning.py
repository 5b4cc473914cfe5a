"""Learning, not only running: a run finds what is in a series, and no more than there is."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.sessions import session

from .market import written

FOLLOWED = 0.8
CEILING = FOLLOWED + (1 - FOLLOWED) / 3
"""What whoever knows the rule is right in."""


def series(*, planted: bool, count: int = 1600) -> pd.DataFrame:
    """Daily bars that rise, stay or fall by 2 %, each as often. Planted: the volume of a bar tells which of them comes
    next, in `FOLLOWED` of all bars, and chance does in the others. Not planted: chance always does.
    """
    draw = np.random.default_rng(5)
    moves, told, random = draw.integers(-1, 2, (3, count))
    followed = (draw.random(count) < FOLLOWED) & planted
    moves = np.where(followed, told, random)
    close = 100 * np.exp(np.concatenate([[0.0], np.cumsum(0.02 * moves + draw.normal(0, 1e-3, count))[:-1]]))
    opened = np.concatenate([[100.0], close[:-1]])
    return pd.DataFrame(
        {
            "time": pd.date_range("2015-01-05", periods=count, freq="1D", unit="us"),
            "open": opened,
            "high": np.maximum(opened, close) * 1.001,
            "low": np.minimum(opened, close) * 0.999,
            "close": close,
            "volume": 1000.0 * np.exp(told),
        }
    )


def learnt(tmp_path: Path, bars: pd.DataFrame, architecture: str) -> dict[str, Any]:
    values = {
        "data": str(written(tmp_path / "bars.csv", bars)),
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
    found: dict[str, Any] = json.loads((tmp_path / "run" / "state.json").read_text())["metrics"]["test"]
    return found


@pytest.mark.parametrize("architecture", ["lstm", "transformer", "mlp", "ensemble"])
def test_a_planted_signal_is_found_and_no_more_than_was_planted(tmp_path: Path, architecture: str) -> None:
    found = learnt(tmp_path, series(planted=True), architecture)
    assert found["accuracy"] > found["majority_accuracy"] + 0.25, found
    assert found["accuracy"] < CEILING + 3 * found["accuracy_error"], found


@pytest.mark.parametrize("architecture", ["mlp", "ensemble"])
def test_in_a_random_series_there_is_nothing_to_find(tmp_path: Path, architecture: str) -> None:
    found = learnt(tmp_path, series(planted=False), architecture)
    assert found["accuracy"] < 1 / 3 + 3 * found["accuracy_error"], found
