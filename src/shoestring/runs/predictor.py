"""Predictions for a stream of inputs, batch after batch, in constant memory."""

from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from shoestring.errors import RunError, ShoestringError
from shoestring.recipe.inputs import Input, Rows
from shoestring.runs.predictions import batch_targets, columns_of, predict_batch, spread
from shoestring.runs.saved_model import SavedModel

if TYPE_CHECKING:
    from torch import nn

Row = dict[str, Any]


@dataclass(kw_only=True)
class Predictor:
    """Predicts with a model that is loaded. Inputs that cannot be used become rows with an error."""

    saved: SavedModel
    model: "nn.Module"
    batch: int
    """The number of inputs that are read at a time. It decides which samples are in one batch, and so the bits."""
    with_targets: bool = False
    """Whether rows have the true answers, of samples that have them."""
    on_out_of_memory: Callable[[str], None] = lambda _: None
    """Is called with a sentence after each out-of-memory error."""
    _size: int = field(init=False)
    """The number of samples that are predicted at once; less than `batch` after out-of-memory."""
    _has_predicted: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._size = self.batch

    def rows(self, inputs: Iterable[Input], *, completed: int = 0) -> Generator[list[Row], None, None]:
        """Yield the rows of each `batch` inputs, in order, without the first `completed` rows.

        Raises RunError if predictions are not as the recipe's contract requires, or if none fits into memory.
        """
        position, iterator = 0, iter(inputs)
        number = 0
        while window := list(islice(iterator, self.batch)):
            end = position + sum(map(_row_count, window))
            if end > completed:
                yield self._predict(window, number, position)[max(0, completed - position) :]
            position, number = end, number + 1

    def _predict(self, window: list[Input], number: int, position: int) -> list[Row]:
        """Return the rows of consecutive inputs; `position` is that of their first row."""
        from shoestring.data.seeding import derive, seed_all, seed_host

        errors: dict[int, str] = {}
        samples: dict[int, Any] = {}
        for index, item in enumerate(window):
            if item.error is not None:
                errors[index] = item.error
                continue
            seed_host(derive(self.saved.loaded.seed, "sample", 0, number * self.batch + index))
            try:
                samples[index] = item.load() if item.load else None
            except Exception as error:  # noqa: BLE001  (one input must not end the others; libraries raise anything)
                errors[index] = _describe(error)
        seed_all(derive(self.saved.loaded.seed, "prediction", number))
        answers = self._predict_samples(samples, errors)
        rows: list[Row] = []
        for index, item in enumerate(window):
            rows += _rows(item, position + len(rows), answers.get(index), errors.get(index))
        return rows

    def _predict_samples(self, samples: dict[int, Any], errors: dict[int, str]) -> dict[int, Row]:
        """Return the columns of each sample by its index, and add to `errors` those that do not fit into memory."""
        from shoestring.engine.memory import Failure, catch_out_of_memory, free_unused_memory

        answers: dict[int, Row] = {}
        waiting = list(samples)
        while waiting:
            indices = waiting[: self._size]
            result = catch_out_of_memory(lambda: self._predict_batch([samples[index] for index in indices]))  # noqa: B023
            if isinstance(result, Failure):
                free_unused_memory()
                self._reduce(result.message, len(indices))
                if len(indices) == 1:
                    errors[waiting.pop(0)] = f"out of memory: {result.message}"
                continue
            self._has_predicted = True
            answers.update(zip(indices, result, strict=True))
            waiting = waiting[len(indices) :]
        return answers

    def _reduce(self, failure: str, size: int) -> None:
        if size > 1:
            self._size = max(1, size // 2)
            self.on_out_of_memory(f"out of memory with {size} inputs at once: continuing with {self._size} ({failure})")
        elif not self._has_predicted:
            raise RunError(
                f"out of memory with a single input: {failure}",
                hint="use shorter or smaller inputs, another precision, or a machine with more memory",
            )

    def _predict_batch(self, samples: list[Any]) -> list[Row]:
        import torch

        from shoestring.data.batches import collate_function, to_device

        loaded, device = self.saved.loaded, self.saved.device
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(self.saved.mixed_precision().autocast())
            batch = to_device(collate_function(loaded.recipe)(samples), device)
            rows = [columns_of(prediction) for prediction in predict_batch(loaded, self.model, batch, len(samples))]
            if self.with_targets:
                targets = batch_targets(loaded, batch, len(samples))
                rows = [{"target": target, **row} for target, row in zip(targets, rows, strict=True)]
        return rows


def _row_count(item: Input) -> int:
    values = next((value for value in (item.value, item.id) if isinstance(value, Rows)), (None,))
    return len(values)


def _rows(item: Input, position: int, columns: Row | None, error: str | None) -> list[Row]:
    """Return the rows of an input, given the columns of its prediction or its error."""
    count = _row_count(item)
    ids = [position + offset for offset in range(count)] if item.id is None else spread(item.id, count)
    if columns is None:
        return [{"id": identifier, "error": error} for identifier in ids]
    values = {} if "target" in columns else {"input": item.value}
    cells = {name: spread(value, count) for name, value in {**values, **columns}.items()}
    return [{"id": ids[row], **{name: value[row] for name, value in cells.items()}} for row in range(count)]


def _describe(error: Exception) -> str:
    text = error.message if isinstance(error, ShoestringError) else str(error)
    text = " ".join(text.split())
    return text if isinstance(error, ValueError | ShoestringError) and text else f"{type(error).__name__}: {text}"
