"""Evaluation of saved weights: metrics, and on request the prediction for each sample. A run is not changed."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring.base.display import Displayed
from shoestring.base.errors import RunError, UsageError
from shoestring.base.failures import exits_as_errors
from shoestring.base.system_errors import explaining
from shoestring.recipe.options import LoadedRecipe
from shoestring.recipe.subset import Subset
from shoestring.recipe.whole_batch import last_batch_notes, require_whole_batch
from shoestring.runs.model import Model, load_model
from shoestring.runs.predict.predictions import without_files
from shoestring.runs.predict.predictor import Predictor
from shoestring.runs.predict.rows import SUFFIXES, RowWriter, is_csv, is_row_file
from shoestring.runs.predict.samples import labeled_inputs
from shoestring.runs.run import Run
from shoestring.training.checkpoint.files import replace
from shoestring.training.data.seeded import seeded_data

if TYPE_CHECKING:
    from shoestring.training.session.stop import Stop


@dataclass(frozen=True, kw_only=True)
class Evaluation(Displayed):
    """The metrics of saved weights."""

    recipe: str
    """The name of the recipe."""
    weights: str
    """The directory or file of the weights."""
    update: int | None
    """The update after which the weights were saved; None if it is not stored with them."""
    device: str
    """The name of the device that evaluated."""
    precision: str
    """The precision that it evaluated in: fp32, fp16 or bf16."""
    seconds: float
    """The duration, with loading the data and the model."""
    metrics: dict[str, dict[str, Any]]
    """The metrics by part of the data: validation and test if the recipe has them, otherwise the training data; or
    `all`."""
    evidence: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What the recipe shows besides its metrics, by part of the data (`recipe/evidence.py`)."""
    notes: tuple[str, ...] = ()
    """Differences from the run, and the recipe's notes on its data and its model."""
    out: str | None = None
    """The file with a row for each sample."""


def evaluate(
    run: Run,
    *,
    limit_seconds: float | None = None,
    started: float | None = None,
    whole: bool = False,
    first: int | None = None,
    out: Path | None = None,
) -> Evaluation:
    """Implement `shoestring.evaluate`."""
    loaded = run.loaded
    if "micro_batch" in run.values:
        require_whole_batch(loaded, run.settings)
    if out:
        _require_writable(loaded, out)

    from shoestring.training.engine.determinism import deterministic
    from shoestring.training.engine.environment import device_name
    from shoestring.training.engine.memory import explaining_out_of_memory
    from shoestring.training.evaluation import split_evidence
    from shoestring.training.session.stop import SessionOver, session

    if first is not None and first < 1:
        raise UsageError(f"--first {first}: must be at least 1", hint="leave it out to evaluate all samples")
    started_at = time.monotonic()
    try:
        with (
            session(limit_seconds, started=started) as stop,
            deterministic(),
            exits_as_errors(),
            run.preprocessing() as preprocessing_notes,
        ):
            with stop.interrupting(), explaining_out_of_memory("loading the data, data()"):
                parts = {"all": _whole_data(loaded)} if whole else _evaluated_parts(seeded_data(loaded))
                if first is not None:
                    parts = {name: Subset(part, range(min(first, len(part)))) for name, part in parts.items()}
            with stop.interrupting(), explaining_out_of_memory("loading the model and its weights"):
                model = load_model(run)
            with explaining_out_of_memory("evaluating"):
                results = {
                    part: split_evidence(_compute_metrics(model, dataset, stop)) for part, dataset in parts.items()
                }
                if out:
                    with explaining(f"{out} could not be written"):
                        replace(out, partial(_write_rows, model, parts, stop, is_csv(out)))
    except SessionOver as over:
        raise RunError(f"not evaluated: {over.reason}", hint="set a longer --limit, or use fewer samples") from over
    return Evaluation(
        recipe=loaded.name,
        weights=str(run.weights),
        update=model.update,
        device=device_name(run.device),
        precision=str(run.settings.precision),
        seconds=time.monotonic() - started_at,
        metrics={part: metrics for part, (metrics, _) in results.items()},
        evidence={part: evidence for part, (_, evidence) in results.items() if evidence},
        notes=(
            *run.notes,
            *preprocessing_notes,
            *model.notes,
            *loaded.parts.data.notes(),
            *last_batch_notes(loaded, parts),
        ),
        out=str(out) if out else None,
    )


def _require_writable(loaded: LoadedRecipe, out: Path) -> None:
    if not is_row_file(out):
        raise UsageError(f"--out {out}: must end in {' or '.join(SUFFIXES)}")
    with explaining(f"{out} could not be written"):
        out.parent.mkdir(parents=True, exist_ok=True)
    if out.exists():
        raise UsageError(f"{out} exists", hint="remove it, or choose another file")
    if not (loaded.parts.use.predict and loaded.parts.evaluation.targets):
        raise UsageError(
            f"{loaded.name} has no predictions for single samples: predict(model, batch) or targets(batch) is missing",
            hint="add both methods to the recipe, or leave out --out",
        )


def _whole_data(loaded: LoadedRecipe) -> Any:
    """Return all data of the recipe as one dataset."""
    if loaded.parts.evaluation.whole:
        return loaded.parts.evaluation.whole()
    from torch.utils.data import ConcatDataset

    parts = seeded_data(loaded)
    return ConcatDataset(list(parts.values())) if len(parts) > 1 else parts["train"]


def _evaluated_parts(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts that the model was not trained on; the training data if there are no others."""
    held_out = {name: data[name] for name in ("validation", "test") if name in data}
    return held_out or {"train": data["train"]}


def _compute_metrics(model: Model, dataset: Any, stop: "Stop") -> dict[str, Any]:
    """Return the recipe's metrics on a part of the data, with smaller microbatches on out-of-memory."""
    from shoestring.training.engine.recovery import Recovering
    from shoestring.training.evaluation import evaluate as evaluate_dataset

    run, precision = model.run, model.run.mixed_precision()

    def attempt(size: int) -> Any:
        return evaluate_dataset(
            run.loaded,
            model.module,
            precision,
            dataset,
            micro_batch=size,
            device=run.device,
            stop=stop,
            workers=run.settings.workers or 0,
            settings=run.settings,
        )

    size = run.loaded.evaluation_size(run.settings.micro_batch or 1)
    recovering = Recovering(model.module, None, precision, divisible=run.loaded.parts.splits_evaluation)
    metrics, _ = recovering.run(attempt, size)
    return dict[str, Any](metrics)


def _write_rows(model: Model, parts: Mapping[str, Any], stop: "Stop", csv: bool, path: Path) -> None:
    """Write a row with the target and the prediction of each sample."""
    loaded, settings = model.run.loaded, model.run.settings
    predictor = Predictor(model=model, batch=loaded.parts.evaluation_size(settings.micro_batch or 1), with_targets=True)
    with path.open("w", encoding="utf-8", errors="replace", newline="") as file:
        writer = RowWriter(file.write, csv=csv)
        for part, dataset in parts.items():
            for rows in predictor.rows(labeled_inputs(loaded, dataset)):
                stop.check()
                part_column = {"part": part} if len(parts) > 1 else {}
                writer.write([{**part_column, **without_files(row)} for row in rows])
        writer.finish()
