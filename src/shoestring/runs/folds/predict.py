"""Predictions of all folds for new inputs, averaged."""

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from shoestring.base.errors import RunError, UsageError
from shoestring.base.streams import answer_stream, write_messages
from shoestring.base.system_errors import explaining
from shoestring.recipe.options import LoadedRecipe
from shoestring.runs.predict.predict import Predictions, predict
from shoestring.runs.predict.predictor import Row
from shoestring.runs.predict.rows import RowWriter, is_csv, is_row_file, read_rows
from shoestring.runs.run import open_run
from shoestring.training.checkpoint.files import replace as replace_file
from shoestring.training.run_directory.fold_runs import runs_in

_NOT_AVERAGED = (
    "{name} is not a fraction, so each row has the answers of all folds in it, as a list: let predict(model, batch) "
    "return probabilities or other floats to have them averaged"
)


def predict_folds(
    folder: Path,
    values: Mapping[str, object],
    *,
    recipe: str | object | None = None,
    on: str = "local",
    limit_seconds: float | None = None,
    out: Path | None = None,
) -> Predictions:
    """Predict the inputs with the model of each fold, and write the mean of their rows.

    The rows of each fold are in files of their own in `OUT.folds`, which the same command completes; without `out`
    they are temporary.

    Raises as `predict` does, and UsageError for a folder as `out`.
    """
    started = time.monotonic()
    if out is not None and not is_row_file(out):
        raise UsageError(
            f"--out {out}: predictions of several folds are one file",
            hint="end it in .jsonl or .csv; for the recipe's own files predict with one fold, such as "
            f"{folder / 'fold-1'}",
        )
    runs = runs_in(folder)
    with tempfile.TemporaryDirectory() as temporary:
        parts = Path(temporary) if out is None else out.with_name(f"{out.name}.folds")
        files = [parts / f"{run.path.name}.jsonl" for run in runs]
        answers: list[Predictions] = []
        for run, file in zip(runs, files, strict=True):
            write_messages(f"predicting with {run.path}")
            left = None if limit_seconds is None else max(0.0, limit_seconds - (time.monotonic() - started))
            opened = open_run(run.path, values, recipe=recipe, on=on, is_prediction=True)
            _require_same_order(opened.loaded)
            answers.append(predict(opened, limit_seconds=left, out=file))
            if answers[-1].status == "paused":
                break
        notes: dict[str, None] = dict.fromkeys(note for answer in answers for note in answer.notes)
        last = answers[-1]
        if last.status == "finished":
            notes |= dict.fromkeys(_write_means(files, out))
        elif out is None:
            raise RunError(
                f"not all inputs are predicted: {last.reason}",
                hint="write into a file, which the same command completes: --out predictions.jsonl",
            )
        return replace(
            last,
            weights=f"{folder} ({len(runs)} folds)",
            out=None if out is None else str(out),
            seconds=time.monotonic() - started,
            notes=tuple(notes),
        )


def _require_same_order(loaded: LoadedRecipe) -> None:
    """Raise UsageError if the samples of each fold may be in another order, and nothing tells them apart."""
    parts = loaded.parts
    if loaded.fold is None and not parts.use.inputs and not parts.evaluation.identify:
        raise UsageError(
            f"{loaded.name} divides its data into folds itself, so the samples of data() may be in another order in "
            "each fold, and their predictions cannot be averaged",
            hint="add inputs(source), whose inputs do not depend on the fold, or identify(dataset, index)",
        )


def _write_means(files: Sequence[Path], out: Path | None) -> list[str]:
    """Write the mean of the rows in `files`, and return notes on columns that have none."""
    not_averaged: dict[str, None] = {}
    rows = _mean_rows(files, not_averaged)
    if out is None:
        RowWriter(answer_stream().write, csv=False).write(rows)
    else:
        with explaining(f"{out} could not be written", ", then repeat the command"):
            replace_file(out, partial(_write, rows, is_csv(out)))
    return [_NOT_AVERAGED.format(name=name) for name in not_averaged]


def _write(rows: Iterator[Row], csv: bool, path: Path) -> None:
    with path.open("w", encoding="utf-8", errors="replace", newline="") as file:
        writer = RowWriter(file.write, csv=csv)
        for row in rows:
            writer.write([row])
        writer.finish()


def _mean_rows(files: Sequence[Path], not_averaged: dict[str, None]) -> Iterator[Row]:
    """Yield the mean of the rows of each input, and add the names of columns without one to `not_averaged`.

    Raises RunError if the files have rows of different inputs.
    """
    for rows in zip_longest(*map(read_rows, files), fillvalue={}):
        if any(row.get("id") != rows[0].get("id") for row in rows):
            raise RunError(
                f"the rows of the folds in {files[0].parent} are of different inputs",
                hint="remove this folder and repeat the command",
            )
        if failed := next((row for row in rows if "error" in row), None):
            yield failed
            continue
        row: Row = {}
        for name in rows[0]:
            values = [row.get(name) for row in rows]
            row[name] = values[0] if name in ("id", "input", "target") else mean_of(values)
            if row[name] is None and any(value is not None for value in values):
                row[name], not_averaged[name] = values, None
        yield row


def mean_of(values: Sequence[Any]) -> Any:
    """Return the mean of floats, and of those at the same place in lists and mappings; of others what all agree on.

    Integers may be the numbers of classes. None if there is no such value.
    """
    first = values[0]
    if all(isinstance(value, float | int) and not isinstance(value, bool) for value in values):
        if any(isinstance(value, float) for value in values):
            return sum(values) / len(values)
    elif all(isinstance(value, list) and len(value) == len(first) for value in values):
        means = [mean_of(items) for items in zip(*values, strict=True)]
        return None if None in means else means
    elif all(isinstance(value, dict) and value.keys() == first.keys() for value in values):
        by_name = {name: mean_of([value[name] for value in values]) for name in first}
        return None if None in by_name.values() else by_name
    return first if all(value == first for value in values) else None
