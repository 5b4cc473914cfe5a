"""The predictions of all samples, each by the model that was not trained on it."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from shoestring.base.errors import RunError
from shoestring.base.failures import exits_as_errors
from shoestring.base.reading import read_blocks, read_json
from shoestring.base.streams import write_messages
from shoestring.base.system_errors import explaining
from shoestring.recipe.finding import find
from shoestring.recipe.folds import Fold
from shoestring.runs.folds.training import fold_values
from shoestring.runs.model import load_model
from shoestring.runs.predict.digests import weights_digest
from shoestring.runs.predict.predictions import without_files
from shoestring.runs.predict.predictor import Predictor, Row
from shoestring.runs.predict.rows import RowWriter
from shoestring.runs.predict.samples import labeled_inputs
from shoestring.runs.run import Run, open_run
from shoestring.runs.train.session import LaunchRequest
from shoestring.runs.train.starting import continue_run
from shoestring.training.checkpoint.files import remove_file, replace, write_file, write_json
from shoestring.training.data.seeded import seeded_data
from shoestring.training.run_directory.fold_runs import META, OUT_OF_FOLD, run_of


def write_out_of_fold(
    recipe: str | object, values: Mapping[str, object], request: LaunchRequest, folds: Sequence[Fold]
) -> str:
    """Predict the samples that each fold has held out, with its best weights, and write them into one file.

    The file of each fold is written first, so that a session which ends continues with the next fold. Returns why the
    file is not complete; empty if it is, or if the recipe cannot predict.

    Raises UsageError if a finished fold has other options than `values`.
    """
    from shoestring.training.engine.determinism import deterministic
    from shoestring.training.session.stop import SessionOver, session

    loaded = find(recipe, is_new=False)
    runs: list[Run] = []
    for fold in folds:
        directory = run_of(request.run, fold)
        stored = directory.plan()
        if stored is None:
            raise RunError(f"{directory.plan_file} is gone", hint="train again, with another --run")
        continue_run(stored, directory, loaded, {**values, **fold_values(loaded, fold)})
        runs.append(open_run(directory.path, {}, recipe=loaded, on="cpu" if request.on == "cpu" else "local"))
    can_predict = runs[0].loaded.parts.use.predict is not None
    weights = {str(fold): weights_digest(run.weights) for fold, run in zip(folds, runs, strict=True)}
    meta = {"format": 1, "weights_sha256": weights, "is_predicted": can_predict}
    if _read(request.run / META) == meta and (not can_predict or (request.run / OUT_OF_FOLD).is_file()):
        return ""
    with explaining(f"{request.run / OUT_OF_FOLD} could not be written", ", then repeat the command"):
        remove_file(request.run / META)
        if can_predict:
            files = [
                request.run / f".out_of_fold-{fold.number}-{digest[:16]}.jsonl"
                for fold, digest in zip(folds, weights.values(), strict=True)
            ]
            try:
                with (
                    session(request.limit_seconds, started=request.started) as stop,
                    deterministic(),
                    exits_as_errors(),
                ):
                    for fold, run, file in zip(folds, runs, files, strict=True):
                        if not file.exists():
                            write_messages(f"predicting the samples of fold {fold.number} of {fold.count}")
                            rows = _rows(run, fold, stop)
                            replace(file, partial(write_file, chunks=_lines(rows)))
            except SessionOver as over:
                return f"{over.reason}: the out-of-fold predictions are not complete"
            replace(request.run / OUT_OF_FOLD, partial(write_file, chunks=_contents(files)))
            for file in files:
                remove_file(file)
        write_json(request.run / META, meta)
    return ""


def _rows(run: Run, fold: Fold, stop: Any) -> Iterator[list[Row]]:
    """Yield the rows of the samples that a fold has held out."""
    loaded = run.loaded
    with run.preprocessing():
        with stop.interrupting():
            data = seeded_data(loaded)
            model = load_model(run)
        part = loaded.parts.data.held_out_part
        if part not in data:
            raise RunError(
                f"data() of {loaded.name} has no part {part}, whose samples fold {fold.number} holds out",
                hint="return the samples of the fold as validation, or name their part: held_out_part",
            )
        predictor = Predictor(
            model=model,
            batch=loaded.parts.evaluation_size(run.settings.micro_batch or 1),
            with_targets=loaded.parts.evaluation.targets is not None,
        )
        for rows in predictor.rows(labeled_inputs(loaded, data[part])):
            stop.check()
            yield [_with_fold(row, fold) for row in rows]


def _with_fold(row: Row, fold: Fold) -> Row:
    columns = {name: value for name, value in without_files(row).items() if name not in ("id", "input")}
    return {"id": row["id"], "fold": fold.number, **columns}


def _lines(rows_of_batches: Iterator[list[Row]]) -> Iterator[bytes]:
    texts: list[str] = []
    writer = RowWriter(texts.append, csv=False)
    for rows in rows_of_batches:
        writer.write(rows)
        yield "".join(texts).encode(errors="replace")
        texts.clear()


def _contents(files: Sequence[Path]) -> Iterator[bytes]:
    for file in files:
        yield from read_blocks(file, follow=False)


def _read(path: Path) -> object:
    try:
        return read_json(path)
    except (OSError, ValueError):
        return None
