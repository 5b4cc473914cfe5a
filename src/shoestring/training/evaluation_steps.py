"""The steps that compute metrics: of an epoch that has ended, of a part of the data, of the best epoch."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

from shoestring.training import oom
from shoestring.training.checkpoint import light
from shoestring.training.divided_evaluation import evaluate_divided
from shoestring.training.engine.parallel.default_group import without_default_group
from shoestring.training.engine.parallel.fully_sharded import FullySharded
from shoestring.training.engine.parallel.ranks import RanksApartError
from shoestring.training.evaluation import as_json, best_entry, evaluate, split_evidence
from shoestring.training.illustrations import describe_examples
from shoestring.training.save_steps import save_in_background
from shoestring.training.training_session import TrainingSession
from shoestring.training.unchanged_buffers import unchanged_buffers
from shoestring.training.weights import require_best, save_best, save_weights, weights_for_use


def evaluate_epoch(session: TrainingSession) -> None:
    """Evaluate the epoch that has just ended on the validation part; save its weights if they are the best so far."""
    session.reports.flush()
    state, settings, run = session.state, session.request.settings, session.request.run
    deadline, ranks = session.request.stop.deadline, session.request.ranks
    if ranks.share(lambda: bool(deadline.limit_seconds) and not deadline.has_observed("evaluation batch")):
        # The first evaluation of a session imports packages and starts kernels: nobody knows whether it ends in time.
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
    state, request = session.state, session.request
    ranks, sharded = request.ranks, state.fully_sharded
    is_divided = ranks.size > 1 and session.updates and not sharded and request.recipe.parts.divides_evaluation
    evaluate_part = partial(
        partial(evaluate_divided, ranks) if is_divided else partial(evaluate, seeds_batches=request.shards.count > 1),
        request.recipe,
        state.model,
        state.mixed_precision,
        session.data[name],
        device=request.device,
        stop=request.stop,
        workers=session.updates.loader.workers if session.updates else 0,
        settings=request.settings,
    )
    size = state.sizes.evaluation_batch or request.recipe.evaluation_size(state.sizes.micro_batch)
    recovering = oom.recovering_evaluation(state, session.record, request.recipe.parts)
    try:
        with unchanged_buffers(session):
            if sharded:
                with sharded.freeing():
                    result = recovering.run(partial(_evaluate_together, session, sharded, evaluate_part), size)
                metrics, fitting_size = ranks.share(lambda: result)
            elif is_divided:
                metrics, fitting_size = recovering.run(lambda micro_batch: evaluate_part(micro_batch=micro_batch), size)
            else:
                metrics, fitting_size = ranks.share(
                    lambda: recovering.run(without_default_group()(lambda size: evaluate_part(micro_batch=size)), size)
                )
    finally:
        if session.updates:
            session.updates.state.reset_trained()
    if fitting_size < size:
        state.sizes = replace(state.sizes, evaluation_batch=fitting_size)
    return cast("dict[str, Any]", metrics)


def _evaluate_together(
    session: TrainingSession, divided: FullySharded, evaluate_part: Callable[..., Any], micro_batch: int
) -> Any:
    """Return the metrics of a part, each batch of which all ranks compute together, or a Failure on all of them."""
    try:
        return divided.call(lambda: evaluate_part(micro_batch=micro_batch, agree=divided.agree))
    except RanksApartError as error:
        oom.record_restart(session.state, session.request, error, evaluation_batch=micro_batch)
        raise
