"""The steps that compute metrics: of an epoch that has ended, of a part of the data, of the best epoch."""

import time
from dataclasses import replace
from typing import Any

from shoestring.training import oom
from shoestring.training.checkpoint import light
from shoestring.training.engine.parallel.errors import RanksApartError
from shoestring.training.evaluation import as_json, best_entry, evaluate, split_evidence
from shoestring.training.illustrations import describe_examples
from shoestring.training.processes.steps import shared
from shoestring.training.save_steps import save_in_background
from shoestring.training.training_session import TrainingSession
from shoestring.training.unchanged_buffers import unchanged_buffers
from shoestring.training.weights import require_best, save_best, save_weights, weights_for_use


def evaluate_epoch(session: TrainingSession) -> None:
    """Evaluate the epoch that has just ended on the validation part; save its weights if they are the best so far."""
    session.reports.flush()
    state, settings, run = session.state, session.request.settings, session.request.run
    if _may_be_late(session):
        save_in_background(session)
    with weights_for_use(session):
        started_at = time.monotonic()
        metrics, evidence = split_evidence(evaluate_on(session, "validation"))
        epoch = state.epochs_done
        state.history.append({"epoch": epoch, "update": state.update, "metrics": metrics})
        best = best_entry(session.request.recipe.parts, state.history) is state.history[-1]
        describe_examples(session, "validation", evidence, with_images=best)
        seconds = time.monotonic() - started_at
        session.record.evaluated(
            "validation", state.update, metrics, epoch=epoch, seconds=seconds, best=best, evidence=evidence
        )
        if best:
            save_best(session, metrics)
        else:
            require_best(session)
        if settings.keep_light:
            save_weights(session, "epoch", light.weights_folder(run.light, state.update), metrics)
            light.keep_newest(run.light, settings.keep_light)
    session.reports.restart()


@shared
def _may_be_late(session: TrainingSession) -> bool:
    """Return whether this is the first evaluation of a session with a limit, which imports packages and starts kernels:
    nobody knows whether it ends in time.
    """
    deadline = session.request.stop.deadline
    return bool(deadline.limit_seconds) and not deadline.has_observed("evaluation batch")


def best_validation(session: TrainingSession) -> dict[str, Any]:
    """Return the validation metrics of the best epoch so far."""
    parts, history = session.request.recipe.parts, session.state.history
    best = best_entry(parts, history)
    if best is None:
        return {}
    comparison = {"comparison": as_json(parts.evaluation.compare(history))} if parts.evaluation.compare else {}
    return {"validation": {**best["metrics"], **comparison}}


def evaluate_on(session: TrainingSession, name: str) -> dict[str, Any]:
    """Return the metrics on a part of the data, with their evidence."""
    state, request, updates = session.state, session.request, session.updates
    is_divisible = updates is not None and request.recipe.parts.divides_evaluation
    strategy = session.processes.evaluation(state, is_divisible=is_divisible)

    def attempt(micro_batch: int) -> Any:
        try:
            return strategy.attempt(
                lambda: evaluate(
                    request.recipe,
                    state.model,
                    state.mixed_precision,
                    session.data[name],
                    micro_batch=micro_batch,
                    device=request.device,
                    stop=request.stop,
                    settings=request.settings,
                    workers=updates.loader.workers if updates else 0,
                    seeds_batches=request.shards.count > 1,
                    strategy=strategy,
                )
            )
        except RanksApartError as error:
            oom.record_restart(state, request, error, evaluation_batch=micro_batch)
            raise

    size = state.sizes.evaluation_batch or request.recipe.evaluation_size(state.sizes.micro_batch)
    recovering = oom.recovering_evaluation(state, session.record, request.recipe.parts)
    try:
        with unchanged_buffers(session):
            metrics, fitting_size = strategy.run(lambda: recovering.run(attempt, size))
    finally:
        if updates:
            updates.state.reset_trained()
    if fitting_size < size:
        state.sizes = replace(state.sizes, evaluation_batch=fitting_size)
    return dict[str, Any](metrics)
