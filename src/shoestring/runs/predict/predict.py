"""Predictions for new inputs, streamed into a file that the same command completes after any interruption."""

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shoestring.base import config
from shoestring.base.display import Displayed
from shoestring.base.errors import RunError, TraceError, UsageError
from shoestring.base.failures import exits_as_errors
from shoestring.base.settings import Settings
from shoestring.recipe.options import LoadedRecipe
from shoestring.runs.model import load_model
from shoestring.runs.predict.digests import data_digest, weights_digest
from shoestring.runs.predict.output import Output, open_output
from shoestring.runs.predict.predictor import Predictor, Row
from shoestring.runs.predict.samples import samples_of
from shoestring.runs.run import Run
from shoestring.training.checkpoint.files import json_digest
from shoestring.training.monitor.counter import Counter
from shoestring.version import __version__

if TYPE_CHECKING:
    from shoestring.training.session.stop import Stop

_MAX_MESSAGES = 5
"""The number of unusable inputs that are reported one by one."""


@dataclass(frozen=True, kw_only=True)
class Predictions(Displayed):
    """The outcome of predictions for a stream of inputs."""

    status: Literal["finished", "paused"]
    """Whether all inputs have a row, or the same command continues."""
    reason: str
    """Why it is paused; empty if it is finished."""
    recipe: str
    """The name of the recipe."""
    weights: str
    """The directory or file of the weights."""
    rows: int
    """The number of rows that are written, with those of earlier commands."""
    errors: int
    """The number of these rows that have an error."""
    out: str | None
    """The file or the folder of the rows; None for standard output."""
    device: str
    """The name of the device that predicted."""
    precision: str
    """The precision that it predicted in: fp32, fp16 or bf16."""
    seconds: float
    """The duration of this command."""
    notes: tuple[str, ...] = ()
    """Differences from the run, and the recipe's notes on its data and its model."""


def predict(
    run: Run, *, limit_seconds: float | None = None, started: float | None = None, out: Path | None = None
) -> Predictions:
    """Implement `shoestring.predict`."""
    require_predict(run.loaded)
    _require_data(run)

    from shoestring.training.engine.determinism import deterministic
    from shoestring.training.engine.environment import device_name
    from shoestring.training.session.stop import SessionOver, session

    started_at = time.monotonic()
    source = run.loaded.options.get("data")
    origin, facts = _describe_origin(run, source), {"recipe": run.loaded.name, "version": __version__}
    reason = ""
    with (
        session(limit_seconds, started=started) as stop,
        deterministic(),
        exits_as_errors(),
        run.preprocessing() as notes,
        open_output(out, origin, facts, batch=batch_size(run)) as output,
    ):
        try:
            if not output.is_complete:
                notes = (*notes, *_write_predictions(run, source, output, stop))
        except SessionOver as over:
            reason = over.reason
            if out is None:
                raise RunError(
                    f"not all inputs are predicted: {reason}",
                    hint="write into a file, which the same command completes: --out predictions.jsonl",
                ) from over
    return Predictions(
        status="paused" if reason else "finished",
        reason=reason,
        recipe=run.loaded.name,
        weights=str(run.weights),
        rows=output.rows,
        errors=output.errors,
        out=str(out) if out else None,
        device=device_name(run.device),
        precision=str(run.settings.precision),
        seconds=time.monotonic() - started_at,
        notes=(*run.notes, *notes),
    )


def require_predict(loaded: LoadedRecipe) -> None:
    """Raise UsageError if the recipe cannot predict."""
    if not loaded.parts.use.predict:
        raise UsageError(
            f"{loaded.name} cannot predict: it has no predict(model, batch)",
            hint="add a method predict(model, batch) to the recipe that returns a prediction for each sample",
        )


def _require_data(run: Run) -> None:
    """Raise UsageError if the inputs would be the data that the model was trained on."""
    loaded = run.loaded
    has_own_inputs = loaded.parts.use.inputs and "data" in loaded.options and (loaded.source or loaded.is_live)
    if "data" not in run.values and has_own_inputs and loaded.options["data"] is None:
        raise UsageError(
            "the inputs are not named",
            hint="name them: --set data=PATH; a conversation with a model that generates text needs a terminal",
        )
    if "data" not in run.values and (path := loaded.options.get("data")):
        raise UsageError(
            f"the inputs are not named; the run was trained on {path}",
            hint="name them: --set data=PATH; to predict for the training data, name these. A conversation with a "
            "model that generates text needs a terminal",
        )


def make_inputs(loaded: LoadedRecipe, source: Path | Sequence[Any] | None) -> Any:
    """Return an iterable of inputs, or of samples, of a path or of a list of rows; with `len` if it is known."""
    if loaded.parts.use.inputs:
        return loaded.parts.use.inputs(source)
    if isinstance(source, list):
        return source
    return list(samples_of(loaded))


def batch_size(run: Run) -> int:
    """Return the number of inputs to predict at once: this command's, on a GPU the planned one, else the run's.

    A plan is made of samples of the data that the run was trained on, because inputs may lack what samples have.
    """
    size = run.loaded.parts.evaluation_size(run.settings.micro_batch or 1)
    if "micro_batch" in run.values or run.target.device.kind == "cpu":
        return size
    from shoestring.planning.inference import plan_inference

    traced = ("precision", "fp32_modules", "memory_format")
    settings = Settings(**{name: getattr(run.settings, name) for name in traced})
    loaded = run.loaded
    if run.stored and "data" in run.values and "data" in run.stored.options:
        loaded = loaded.replace(data=run.stored.options["data"])
    try:
        plan = plan_inference(loaded, run.target, settings)
    except (TraceError, UsageError):  # a UsageError: that data cannot be read any more
        return size
    return plan.settings.micro_batch or size


def _write_predictions(run: Run, source: Path | None, output: Output, stop: "Stop") -> tuple[str, ...]:
    """Write the rows of all inputs that the output does not have yet, and return notes for the user.

    Raises SessionOver when the session has to stop.
    """
    from shoestring.training.engine.memory import explaining_out_of_memory

    with stop.interrupting(), explaining_out_of_memory("loading the inputs"):
        inputs = make_inputs(run.loaded, source)
    with stop.interrupting(), explaining_out_of_memory("loading the model and its weights"):
        model = load_model(run)
    total = len(inputs) if hasattr(inputs, "__len__") else None
    counter = Counter("inputs", total=total, completed=output.rows)

    def report_out_of_memory(size: int, message: str) -> None:
        output.reduce(size, message)
        counter.message(message)

    predictor = Predictor(model=model, batch=output.batch, size=output.size, on_out_of_memory=report_out_of_memory)
    rows_of_batches = predictor.rows(inputs, completed=output.rows, check=output.check)
    with closing(rows_of_batches), explaining_out_of_memory("predicting"), closing(counter):
        while True:
            stop.check()
            with stop.deadline.measure("prediction"):
                rows = next(rows_of_batches, None)
                if rows is None:
                    break
                _report_errors(rows, output.errors, counter)
                output.write(rows)
            counter.add(len(rows))
    output.finish({"update": model.update})
    return (*model.notes, *run.loaded.parts.data.notes())


def _report_errors(rows: Sequence[Row], earlier: int, counter: Counter) -> None:
    errors = [row for row in rows if "error" in row]
    for row in errors[: max(0, _MAX_MESSAGES - earlier)]:
        counter.message(f"input {row['id']}: {row['error']}")
    if earlier < _MAX_MESSAGES <= earlier + len(errors):
        counter.message("further unusable inputs are only in the rows")


def _recipe_digest(loaded: LoadedRecipe) -> str:
    package = {"package": str(loaded.foreign_package)} if loaded.foreign_package else {}
    return json_digest({"file": loaded.digest, **loaded.imports, **package})


def _describe_origin(run: Run, source: Path | None) -> dict[str, Any]:
    """Return what decides the predictions: rows of another origin are not continued."""
    loaded = run.loaded
    options = config.as_json(loaded.options)
    # A path may have moved; its content counts.
    options |= {name: data_digest(path) for name, path in loaded.paths.items() if name != "data"}
    options.pop("data", None)
    return {
        "weights_sha256": weights_digest(run.weights),
        "recipe_sha256": _recipe_digest(loaded),
        "data_sha256": data_digest(source) if source else None,
        "options": options,
        "precision": run.settings.precision,
    }
