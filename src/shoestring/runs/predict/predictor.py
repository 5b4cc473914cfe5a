"""Predictions for a stream of inputs, batch after batch, in constant memory."""

from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, islice
from typing import Any

from shoestring.base.errors import RunError, ShoestringError
from shoestring.base.json_values import NotJsonError, encode
from shoestring.recipe.inputs import Input, Rows
from shoestring.runs.model import Model
from shoestring.runs.predict.predictions import batch_targets, columns_of, predict_batch, spread

Row = dict[str, Any]


@dataclass(kw_only=True)
class Predictor:
    """Predicts with a model that is loaded. Inputs that cannot be used become rows with an error."""

    model: Model
    batch: int
    """The number of inputs that are read at a time. It decides which samples are in one batch, and so the bits."""
    size: int = 0
    """The number of samples that are predicted at once; less than `batch` after out-of-memory. 0: `batch`."""
    with_targets: bool = False
    """Whether rows have the true answers, of samples that have them."""
    on_out_of_memory: Callable[[int, str], None] = lambda *_: None
    """Is called with the smaller size and a sentence after out-of-memory errors."""
    _has_predicted: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        from shoestring.runs.predict.seeding import PredictionSeeds

        self.size = self.size or self.batch
        self._seeds = PredictionSeeds(self.model)

    def rows(
        self, inputs: Iterable[Any], *, completed: int = 0, check: Callable[[list[Any]], None] = lambda _: None
    ) -> Generator[list[Row], None, None]:
        """Yield the rows of each `batch` inputs, in order, without the first `completed` rows.

        What is no `Input` is a sample.

        `check` is called with the identifiers of the rows that are left out.

        Raises RunError if predictions are not as the recipe's contract requires, or if none fits into memory.
        """
        position, iterator = 0, iter(inputs)
        number = 0
        while window := list(map(_as_input, islice(iterator, self.batch))):
            end = position + sum(map(_row_count, window))
            if completed > position:
                check(_identifiers(window, position)[: completed - position])
            if end > completed:
                rows = self._predict(window, number, position)
                if self._seeds.has_new():
                    rows = self._predict(window, number, position)
                yield rows[max(0, completed - position) :]
            position, number = end, number + 1
        if completed > position:
            check([None] * (completed - position))

    def _predict(self, window: list[Input], number: int, position: int) -> list[Row]:
        """Return the rows of consecutive inputs; `position` is that of their first row."""
        errors: dict[int, str] = {}
        samples: dict[int, Any] = {}
        for index, item in enumerate(window):
            if item.error is not None:
                errors[index] = item.error
                continue
            self._seeds.seed_input(item.load, number * self.batch + index)
            try:
                samples[index] = item.load() if item.load else None
            except Exception as error:  # noqa: BLE001  (one input must not end the others; libraries raise anything)
                errors[index] = _describe(error)
        starts = accumulate(map(_row_count, window), initial=position)
        identifiers = [_identifiers([item], start)[0] for item, start in zip(window, starts, strict=False)]
        answers = self._predict_samples(samples, identifiers, errors, number)
        rows: list[Row] = []
        for index, item in enumerate(window):
            values = {} if self.with_targets else {"input": item.value}
            columns = {**values, **answers[index]} if index in answers else None
            rows += _rows(item, position + len(rows), columns, errors.get(index))
        return rows

    def _predict_samples(
        self, samples: dict[int, Any], identifiers: list[Any], errors: dict[int, str], number: int
    ) -> dict[int, Row]:
        """Return the columns of each sample by its index, and add to `errors` those that do not fit into memory.

        After out-of-memory all samples are predicted again: their bits depend on which ones are predicted together.
        """
        from shoestring.training.engine.memory import Failure, catch_out_of_memory, free_unused_memory

        while True:
            self._seeds.seed_batch(number)
            answers: dict[int, Row] = {}
            failed: dict[int, str] = {}
            indices = list(samples)
            for start in range(0, len(indices), self.size):
                group = indices[start : start + self.size]
                predict = partial(
                    self._predict_batch, [samples[index] for index in group], [identifiers[index] for index in group]
                )
                result = catch_out_of_memory(predict)
                if isinstance(result, Failure):
                    free_unused_memory()
                    if self.size > 1:
                        self._reduce(result.message, len(group))
                        break
                    # Its row says so for good, so that it is tried once more, without cached memory.
                    result = catch_out_of_memory(predict)
                if isinstance(result, Failure):
                    free_unused_memory()
                    failed[group[0]] = result.message
                else:
                    answers.update(zip(group, result, strict=True))
            else:
                self._require_success(answers, failed)
                errors.update({index: f"out of memory: {message}" for index, message in failed.items()})
                return answers

    def _reduce(self, failure: str, count: int) -> None:
        self.size = max(1, min(count, self.size) // 2)
        message = f"out of memory with {count} inputs at once: continuing with {self.size} ({failure})"
        self.on_out_of_memory(self.size, message)

    def _require_success(self, answers: dict[int, Row], failed: dict[int, str]) -> None:
        """Raise RunError if not a single input has fitted so far: then it is the machine that is too small."""
        self._has_predicted = self._has_predicted or bool(answers)
        if failed and not self._has_predicted:
            raise RunError(
                f"out of memory with a single input: {next(iter(failed.values()))}",
                hint="use shorter or smaller inputs, another precision, or a machine with more memory",
            )

    def _predict_batch(self, samples: list[Any], identifiers: list[Any]) -> list[Row]:
        import torch

        from shoestring.techniques.memory_format import reshaping_views
        from shoestring.training.data.batches import evaluation_collate_function, to_device

        run = self.model.run
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(run.mixed_precision().autocast())
            stack.enter_context(reshaping_views(run.settings.memory_format))
            batch = evaluation_collate_function(run.loaded.recipe)(samples)
            batch = to_device(batch, run.device, run.settings.memory_format)
            predictions = predict_batch(run.loaded, self.model.module, batch, identifiers)
            rows = [columns_of(prediction) for prediction in predictions]
            if self.with_targets:
                targets = batch_targets(run.loaded, batch, identifiers)
                rows = [{"target": target, **row} for target, row in zip(targets, rows, strict=True)]
        return rows


def _as_input(item: Any) -> Input:
    """Return an input whose identifier and value are JSON; one that has no form in JSON is an error of the input."""
    if not isinstance(item, Input):
        return Input(load=lambda: item)
    problems: list[str] = []
    identifier, value = _as_cell(item.id, "identifier", problems), _as_cell(item.value, "value", problems)
    error = None if item.error is None else str(item.error)
    return replace(item, id=identifier, value=value, error=next(iter(problems), None) if error is None else error)


def _as_cell(value: Any, subject: str, problems: list[str]) -> Any:
    """Return an identifier or a value of an input as JSON, with `Rows` kept; None with a problem if it has no form."""
    if isinstance(value, Rows):
        return Rows(_as_cell(item, subject, problems) for item in value)
    try:
        return encode(value)
    except NotJsonError as error:
        problems.append(f"its {subject} is {error}, which is not JSON")
        return None


def _row_count(item: Input) -> int:
    values = next((value for value in (item.value, item.id) if isinstance(value, Rows)), (None,))
    return len(values)


def _identifiers(window: list[Input], position: int) -> list[Any]:
    """Return the identifier of each row of consecutive inputs; `position` is that of the first row."""
    identifiers: list[Any] = []
    for item in window:
        first = position + len(identifiers)
        cells = enumerate(spread(item.id, _row_count(item)), first)
        identifiers += [number if identifier is None else identifier for number, identifier in cells]
    return identifiers


def _rows(item: Input, position: int, columns: Row | None, error: str | None) -> list[Row]:
    """Return the rows of an input, given their columns or its error."""
    count, ids = _row_count(item), _identifiers([item], position)
    if columns is None:
        return [{"id": identifier, "error": error} for identifier in ids]
    cells = {name: spread(value, count) for name, value in columns.items()}
    return [{"id": ids[row], **{name: value[row] for name, value in cells.items()}} for row in range(count)]


def _describe(error: Exception) -> str:
    text = error.message if isinstance(error, ShoestringError) else str(error)
    text = " ".join(text.split())
    return text if isinstance(error, ValueError | ShoestringError) and text else f"{type(error).__name__}: {text}"
