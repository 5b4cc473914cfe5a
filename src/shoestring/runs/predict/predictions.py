"""The predictions of a recipe for a batch, as rows."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shoestring.base.errors import RunError
from shoestring.base.json_values import NotJsonError, encode
from shoestring.recipe.inputs import Rows
from shoestring.recipe.options import LoadedRecipe

if TYPE_CHECKING:
    from torch import nn

FILES = "files"
"""The key of a prediction with the contents of files, by name, which are not JSON."""


def predict_batch(loaded: LoadedRecipe, model: "nn.Module", batch: Any, identifiers: Sequence[Any]) -> list[Any]:
    """Return the recipe's predictions for the samples of a batch with these identifiers, as JSON.

    Raises RunError if they are not one for each sample, or not JSON.
    """
    assert loaded.parts.use.predict
    return _as_list(loaded.parts.use.predict(model, batch), identifiers, "predict(model, batch)")


def batch_targets(loaded: LoadedRecipe, batch: Any, identifiers: Sequence[Any]) -> list[Any]:
    """Return the true answers of the samples of a batch, as JSON. Arguments and errors are those of `predict_batch`."""
    assert loaded.parts.evaluation.targets
    return _as_list(loaded.parts.evaluation.targets(batch), identifiers, "targets(batch)")


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


def _as_list(values: Any, identifiers: Sequence[Any], source: str) -> list[Any]:
    items = list(values.tolist() if hasattr(values, "tolist") else values)
    if len(items) != len(identifiers):
        raise RunError(
            f"{source} returned {len(items)} values for a batch of {len(identifiers)} samples",
            hint="return one value for each sample",
        )
    names = (f"{source}, for the row with the id {identifier}," for identifier in identifiers)
    return [as_json(item, name) for item, name in zip(items, names, strict=True)]


def as_json(value: Any, source: str) -> Any:
    """Return a prediction or a target as JSON; `Rows` and the contents of `FILES` are kept.

    Raises RunError for a value that JSON does not have.
    """
    if isinstance(value, Rows):
        return Rows(as_json(item, source) for item in value)
    if isinstance(value, Mapping) and "prediction" in value:
        return {str(name): cell if name == FILES else as_json(cell, source) for name, cell in value.items()}
    try:
        return encode(value)
    except NotJsonError as error:
        raise RunError(
            f"{source} returned {error}, which is not JSON",
            hint="return texts, numbers, lists and dicts of them, or tensors; contents of files belong under `files`",
        ) from None
