"""What saved weights are for: metrics, predictions, files for other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from shoestring.api.arguments import checked_path, require_limits
from shoestring.base.packages.broken import usable_libraries

if TYPE_CHECKING:
    from shoestring.runs.evaluate import Evaluation
    from shoestring.runs.export.export import Export
    from shoestring.runs.predict.loaded import LoadedModel
    from shoestring.runs.predict.predict import Predictions


def evaluate(
    directory: str | Path,
    *,
    recipe: str | object | None = None,
    on: str = "local",
    limit_seconds: float | None = None,
    whole: bool = False,
    first: int | None = None,
    out: str | Path | None = None,
    **values: object,
) -> Evaluation:
    """Compute the metrics of saved weights, without an optimizer in memory.

    `directory` is a run (its best weights, else its last ones, else those of its newest checkpoint), its `best` or
    `light` folder, or one of its checkpoints. With `recipe` it may also be weights without a run; with a run, `recipe`
    is only needed if the run's own recipe is not found any more. `values`, such as `data`, replace the run's own
    options. With `whole`, all data are one part; with `first`, only so many first samples of each part count. The
    file `out` (.jsonl or .csv) gets a row for each sample. The run is not changed.

    Raises UsageError for invalid usage, CheckpointError for weights that are damaged or belong to another model.
    """
    with usable_libraries():
        from shoestring.runs.evaluate import evaluate
        from shoestring.runs.run import open_run

    require_limits(limit_seconds=limit_seconds)
    return evaluate(
        open_run(checked_path(directory), values, recipe=recipe, on=on),
        limit_seconds=limit_seconds,
        whole=whole,
        first=first,
        out=checked_path(out) if out else None,
    )


def predict(
    directory: str | Path,
    *,
    recipe: str | object | None = None,
    on: str = "local",
    limit_seconds: float | None = None,
    out: str | Path | None = None,
    **values: object,
) -> Predictions:
    """Predict for the inputs in the option `data`, which need no targets, and write a row for each.

    `directory` and `recipe` are those of `evaluate`. `out` is a file (.jsonl or .csv), or a folder, which also gets the
    files of a recipe's predictions; by default JSON lines on standard output. A file or folder that is not complete is
    completed by the same call. With the folder of a cross-validation, the floats in the rows are the mean of all folds.

    Raises UsageError for invalid usage, CheckpointError for weights that are damaged or belong to another model. An
    input that cannot be used is a row with `error`.
    """
    with usable_libraries():
        from shoestring.runs.folds.predict import predict_folds
        from shoestring.runs.predict.predict import predict
        from shoestring.runs.run import open_run
        from shoestring.training.run_directory.fold_runs import runs_in

    require_limits(limit_seconds=limit_seconds)
    if runs_in(checked_path(directory)):
        return predict_folds(
            checked_path(directory),
            values,
            recipe=recipe,
            on=on,
            limit_seconds=limit_seconds,
            out=checked_path(out) if out else None,
        )
    return predict(
        open_run(checked_path(directory), values, recipe=recipe, on=on, is_prediction=True),
        limit_seconds=limit_seconds,
        out=checked_path(out) if out else None,
    )


def converse(
    directory: str | Path,
    *,
    input_stream: TextIO,
    output_stream: TextIO,
    recipe: str | object | None = None,
    on: str = "local",
    **values: object,
) -> bool:
    """Answer each line of `input_stream` on `output_stream`, knowing the earlier ones, until the end or `/exit`.

    Returns False, without having loaded the model, if the recipe has no part `converse`. The other arguments and the
    errors are those of `predict`.
    """
    with usable_libraries():
        from shoestring.runs.predict.conversation import converse
        from shoestring.runs.run import open_run

    run = open_run(checked_path(directory), values, recipe=recipe, on=on, is_prediction=True)
    return converse(run, input_stream=input_stream, output_stream=output_stream)


def load(
    directory: str | Path, *, recipe: str | object | None = None, on: str = "local", **values: object
) -> LoadedModel:
    """Load a trained model: its `model` is the module, its `predict(inputs)` returns a row for each input.

    The arguments and the errors are those of `predict`.
    """
    with usable_libraries():
        from shoestring.runs.predict.loaded import load
        from shoestring.runs.run import open_run

    return load(open_run(checked_path(directory), values, recipe=recipe, on=on, is_prediction=True))


def export(
    directory: str | Path,
    *,
    to: str,
    out: str | Path | None = None,
    overwrite: bool = False,
    recipe: str | object | None = None,
    **values: object,
) -> Export:
    """Write the model of a run or of a checkpoint to a folder that other libraries load, with a model card.

    `directory` is as in `evaluate`. Every recipe can be exported `to` safetensors, and to the formats that it
    defines: onnx, huggingface, adapter, merged, gguf. The folder is `export/FORMAT` in the run's directory, or
    `out`; with `overwrite` it replaces an older export. Outputs are compared with the model's on the recipe's data;
    `values`, such as `data`, replace the run's own options.

    Raises UsageError for invalid usage, RunError if the outputs differ from the model's or the disk has no space, and
    CheckpointError for weights that are damaged or belong to another model.
    """
    with usable_libraries():
        from shoestring.runs.export.export import export
        from shoestring.runs.run import open_run

    run = open_run(checked_path(directory), values, recipe=recipe, on="cpu")
    return export(run, to=to, out=checked_path(out) if out else None, overwrite=overwrite)
