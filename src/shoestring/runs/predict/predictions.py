"""The predictions of a recipe for a batch, as rows."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shoestring.base.errors import RunError
from shoestring.recipe.inputs import Rows
from shoestring.recipe.options import LoadedRecipe

if TYPE_CHECKING:
    from torch import nn

_MAX_INTEGER = 10**290  # readers of JSON refuse longer ones
FILES = "files"
"""The key of a prediction with the contents of files, by name, which are not JSON."""


def predict_batch(loaded: LoadedRecipe, model: "nn.Module", batch: Any, samples: int) -> list[Any]:
    """Return the recipe's predictions for the samples of a batch, as JSON.

    Raises RunError if they are not one for each sample, or not JSON.
    """
    assert loaded.parts.use.predict
    return _as_list(loaded.parts.use.predict(model, batch), samples, "predict(model, batch)")


def batch_targets(loaded: LoadedRecipe, batch: Any, samples: int) -> list[Any]:
    """Return the true answers of the samples of a batch, as JSON. Raises as `predict_batch` does."""
    assert loaded.parts.evaluation.targets
    return _as_list(loaded.parts.evaluation.targets(batch), samples, "targets(batch)")


def columns_of(prediction: Any) -> dict[str, Any]:
    """Return the columns of a prediction: those of a mapping with the key `prediction`, or that one."""
    if isinstance(prediction, Mapping) and "prediction" in prediction:
        return dict(prediction)
    return {"prediction": prediction}


def without_files(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row without the contents of files."""
    return {name: value for name, value in row.items() if name != FILES}


def spread(value: Any, count: int) -> Sequence[Any]:
    """Return the value of each of a sample's `count` rows. Raises RunError if there are not so many."""
    if not isinstance(value, Rows):
        return [value] * count
    if len(value) != count:
        raise RunError(f"the recipe returned {len(value)} values for the {count} rows of one sample")
    return value


def _as_list(values: Any, samples: int, source: str) -> list[Any]:
    items = list(values.tolist() if hasattr(values, "tolist") else values)
    if len(items) != samples:
        raise RunError(
            f"{source} returned {len(items)} values for a batch of {samples} samples",
            hint="return one value for each sample",
        )
    return [as_json(item, source) for item in items]


def as_json(value: Any, source: str) -> Any:
    """Return a value as JSON: tensors as lists, numbers that are not finite as None. `Rows` and `FILES` are kept.

    Raises RunError for a value that JSON does not have.
    """
    if isinstance(value, Rows):
        return Rows(as_json(item, source) for item in value)
    if hasattr(value, "tolist"):  # a tensor, or an array or number of NumPy
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): item if key == FILES else as_json(item, source) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item, source) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | float) or (isinstance(value, int) and abs(value) < _MAX_INTEGER):
        return value
    raise RunError(
        f"{source} returned {value!r:.100} of type {type(value).__name__}, which is not JSON",
        hint="return texts, numbers, lists and dicts of them, or tensors",
    )
