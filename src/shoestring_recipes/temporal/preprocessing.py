"""What is fitted on the training part: the timeframes, and the mean and the deviation of each feature.

A run stores it as a JSON file, whose floats are exact, so that evaluation and prediction use the same numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoestring.base.errors import CheckpointError
from shoestring.base.reading import number, read_json, reason
from shoestring_recipes.temporal.features import FEATURES
from shoestring_recipes.temporal.table import Table
from shoestring_recipes.temporal.timeframes import PERIODS, timeframes_for

NAME = "preprocessing.json"

CONSTANT = 1e-6
"""Standard deviation below which a feature is constant except for rounding."""

CLIP = 10.0
"""Largest absolute standardized value, so that a crash does not dominate all other inputs."""


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """The timeframes, and the mean and the deviation of each of the `FEATURES`, in their order."""

    timeframes: tuple[str, str]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    spacing: float | None = None
    """Median seconds between the bars that the model was trained on; None in runs of earlier versions."""

    def suits(self, spacing: float) -> bool:
        """Return whether bars with this median spacing have the timeframes of those that the model was trained on."""
        own = self.timeframes if self.spacing is None else timeframes_for(self.spacing)
        return timeframes_for(spacing) == own


def fit(table: Table, timeframes: tuple[str, str], before: int, spacing: float | None = None) -> Preprocessing:
    """Return the mean and the deviation of each feature over the moments below `before`, which are the training part.

    Later bars do not influence them. The deviation of a feature that is constant in the training part (for example
    without volume in the file) is 1, so it is only centered.
    """
    training = table.features[table.moment < before]
    mean, deviation = training.mean(axis=0, dtype=np.float64), training.std(axis=0, dtype=np.float64)
    deviation[deviation < CONSTANT] = 1.0
    return Preprocessing(
        timeframes=timeframes, mean=tuple(mean.tolist()), deviation=tuple(deviation.tolist()), spacing=spacing
    )


def standardize(table: Table, preprocessing: Preprocessing) -> NDArray[np.float32]:
    """Return the features minus the mean, in deviations."""
    scaled: NDArray[np.float32] = table.features - np.array(preprocessing.mean, dtype=np.float32)
    scaled /= np.array(preprocessing.deviation, dtype=np.float32)
    return np.clip(scaled, -CLIP, CLIP, out=scaled)


def save(preprocessing: Preprocessing, folder: Path) -> None:
    """Write the file `NAME` into `folder`."""
    scaler = {
        name: {"mean": mean, "deviation": deviation}
        for name, mean, deviation in zip(FEATURES, preprocessing.mean, preprocessing.deviation, strict=True)
    }
    content = {"timeframes": preprocessing.timeframes, "spacing": preprocessing.spacing, "scaler": scaler}
    (folder / NAME).write_text(json.dumps(content, indent=1), encoding="utf-8")


def load(folder: Path) -> Preprocessing:
    """Return what `save` has written. Raises CheckpointError if the file cannot be used."""
    path = folder / NAME
    try:
        content = read_json(path)
        if problems := _find_problems(content):
            raise CheckpointError(f"{path} cannot be used", problems=problems[:20], hint=_HINT)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {reason(error)}", hint=_HINT) from error
    middle, coarse = content["timeframes"]
    mean, deviation = (tuple(float(entry[key]) for entry in content["scaler"].values()) for key in _KEYS)
    spacing = number(content.get("spacing"))
    return Preprocessing(timeframes=(middle, coarse), mean=mean, deviation=deviation, spacing=spacing)


_KEYS = ("mean", "deviation")
_HINT = "the predictions of the model need the scaler of its training data; copy the run again"


def _find_problems(content: Any) -> list[str]:
    if not isinstance(content, dict) or not isinstance(scaler := content.get("scaler"), dict):
        return ["it is not an object with the keys timeframes and scaler"]
    timeframes = content.get("timeframes")
    problems = []
    if not isinstance(timeframes, list) or len(timeframes) != 2 or not all(name in [*PERIODS] for name in timeframes):
        problems.append(f"timeframes: {str(timeframes)[:80]!r} is not a pair of {', '.join(PERIODS)}")
    if content.get("spacing") is not None and not (number(content["spacing"]) or 0) > 0:
        problems.append(f"spacing: {str(content['spacing'])[:80]!r} is not a positive number of seconds")
    if tuple(scaler) != FEATURES:
        problems.append(f"scaler: its features are not {', '.join(FEATURES)}")
    for name, entry in scaler.items():
        mean, deviation = map(entry.get, _KEYS) if isinstance(entry, Mapping) else (None, None)
        if number(mean) is None or not (number(deviation) or 0) > 0:
            problems.append(f"scaler: {name[:40]}: {str(entry)[:80]!r} is not a mean and a positive deviation")
    return problems
