"""A saved model in memory, for use in Python: `shoestring.load(DIR)`."""

import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring.base.display import Displayed
from shoestring.base.errors import UsageError
from shoestring.runs.predict.predict import batch_size, make_inputs, require_predict
from shoestring.runs.predict.predictions import without_files
from shoestring.runs.predict.predictor import Predictor, Row
from shoestring.runs.saved_model import SavedModel, open_saved

if TYPE_CHECKING:
    from torch import nn


class LoadedModel(Displayed):
    """A trained model and its recipe."""

    def __init__(
        self, saved: SavedModel, model: "nn.Module", *, batch: int, update: int | None, notes: tuple[str, ...]
    ) -> None:
        self.model = model
        """The module, in evaluation mode on its device."""
        self.recipe = saved.loaded.recipe
        """The recipe, with the options of the run."""
        self.update = update
        """The update after which the weights were saved; None if it is not stored with them."""
        self.notes = notes
        """Differences from the run, and whether the weights are verified."""
        self._saved, self._batch = saved, batch

    @property
    def name(self) -> str:
        """The name of the recipe."""
        return self._saved.loaded.name

    @property
    def weights(self) -> str:
        """The directory or file of the weights."""
        return str(self._saved.weights.path)

    def __repr__(self) -> str:
        return f"<LoadedModel of {self.name}: the weights in {self.weights}>"

    def predict(self, inputs: Sequence[Any] | str | Path) -> list[Row]:
        """Return the rows of all inputs, as `shoestring predict` writes them.

        `inputs` is a list of rows as in the recipe's data file, or the path of such a file.

        Raises UsageError if the recipe cannot predict. An input that cannot be used is a row with `error`.
        """
        from shoestring.training.engine.determinism import deterministic

        require_predict(self._saved.loaded)
        if not isinstance(inputs, str | Path | Sequence):
            raise UsageError(f"inputs is {inputs!r:.100}", hint="pass a list of inputs, or the path of a file")
        source = Path(inputs) if isinstance(inputs, str | Path) else list(inputs)
        predictor = Predictor(saved=self._saved, model=self.model, batch=self._batch)
        with deterministic():
            batches = predictor.rows(make_inputs(self._saved.loaded, source))
            return [without_files(row) for rows in batches for row in rows]


def load(
    location: Path, values: Mapping[str, object], *, recipe: str | object | None = None, on: str = "local"
) -> LoadedModel:
    """Implement `shoestring.load`, with options and settings in `values`."""
    saved = open_saved(location, values, recipe=recipe, on=on, is_prediction=True)
    stack = ExitStack()
    notes = stack.enter_context(saved.preprocessing())
    model, update, weights_notes = saved.load_model()
    all_notes = (*saved.notes, *notes, *weights_notes)
    loaded_model = LoadedModel(saved, model, batch=batch_size(saved, values), update=update, notes=all_notes)
    weakref.finalize(loaded_model, stack.close)
    return loaded_model
