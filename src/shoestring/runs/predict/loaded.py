"""A saved model in memory, for use in Python: `shoestring.load(DIR)`."""

import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring.base.display import Displayed
from shoestring.base.errors import UsageError
from shoestring.runs.model import Model, load_model
from shoestring.runs.predict.predict import batch_size, make_inputs, require_predict
from shoestring.runs.predict.predictions import without_files
from shoestring.runs.predict.predictor import Predictor, Row
from shoestring.runs.run import Run

if TYPE_CHECKING:
    from torch import nn


class LoadedModel(Displayed):
    """A trained model and its recipe."""

    def __init__(self, model: Model, *, batch: int, notes: tuple[str, ...]) -> None:
        self.model: nn.Module = model.module
        """The module, in evaluation mode on its device."""
        self.recipe = model.run.loaded.recipe
        """The recipe, with the options of the run."""
        self.update = model.update
        """The update after which the weights were saved; None if it is not stored with them."""
        self.notes = notes
        """Differences from the run, and whether the weights are verified."""
        self._model, self._batch = model, batch

    @property
    def name(self) -> str:
        """The name of the recipe."""
        return self._model.run.loaded.name

    @property
    def weights(self) -> str:
        """The directory or file of the weights."""
        return str(self._model.run.weights)

    def __repr__(self) -> str:
        return f"<LoadedModel of {self.name}: the weights in {self.weights}>"

    def predict(self, inputs: Sequence[Any] | str | Path) -> list[Row]:
        """Return the rows of all inputs, as `shoestring predict` writes them.

        `inputs` is a list of rows as in the recipe's data file, or the path of such a file.

        Raises UsageError if the recipe cannot predict. An input that cannot be used is a row with `error`.
        """
        from shoestring.training.engine.determinism import deterministic

        require_predict(self._model.run.loaded)
        if not isinstance(inputs, str | Path | Sequence):
            raise UsageError(f"inputs is {inputs!r:.100}", hint="pass a list of inputs, or the path of a file")
        source = Path(inputs) if isinstance(inputs, str | Path) else list(inputs)
        predictor = Predictor(model=self._model, batch=self._batch)
        with deterministic():
            batches = predictor.rows(make_inputs(self._model.run.loaded, source))
            return [without_files(row) for rows in batches for row in rows]


def load(run: Run) -> LoadedModel:
    """Implement `shoestring.load`."""
    stack = ExitStack()
    preprocessing_notes = stack.enter_context(run.preprocessing())
    model = load_model(run)
    notes = (*run.notes, *preprocessing_notes, *model.notes)
    loaded_model = LoadedModel(model, batch=batch_size(run), notes=notes)
    weakref.finalize(loaded_model, stack.close)
    return loaded_model
