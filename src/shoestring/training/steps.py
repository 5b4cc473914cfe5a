"""The steps of the training loop, in the order in which it runs them. A library's trainer runs them in callbacks."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, cast

from shoestring.base.errors import CheckpointError
from shoestring.recipe.losses import clip_norm, loss_at
from shoestring.techniques.fallbacks import Phase
from shoestring.techniques.parameter_count import ParameterCount
from shoestring.training import oom
from shoestring.training.checkpoint import light
from shoestring.training.checkpoint.presence import gone_error
from shoestring.training.data.seeding import derive, seed_all
from shoestring.training.divided_evaluation import evaluate_divided
from shoestring.training.engine.environment import device_name
from shoestring.training.engine.memory import (
    Failure,
    HalfDoneError,
    catch_out_of_memory,
    free_unused_memory,
    no_memory_error,
    retry_with_freed_memory,
)
from shoestring.training.engine.parallel.default_group import without_default_group
from shoestring.training.engine.parallel.fully_sharded import FullySharded
from shoestring.training.engine.parallel.ranks import Ranks, RanksApartError
from shoestring.training.engine.parallel.replicas import require_equal
from shoestring.training.engine.recovery import OutOfMemory, discard_attempt
from shoestring.training.engine.update import UpdateResult, update
from shoestring.training.evaluation import as_json, best_entry, evaluate, patience_exhausted, split_evidence
from shoestring.training.held_out_answers import answer_held_out_prompts
from shoestring.training.illustrations import describe_examples
from shoestring.training.space import require_space
from shoestring.training.training_session import TrainingSession
from shoestring.training.unchanged_buffers import unchanged_buffers
from shoestring.training.weights import load_best, require_best, save_best, save_weights, weights_for_use


def begin(session: TrainingSession) -> None:
    """Record the start of the session. Before a run's first update, save its state: a disk that cannot hold a
    checkpoint is detected now, not in an hour.
    """
    state, record, request = session.state, session.record, session.request
    record.expect(state.total_updates)
    record.started(
        state.update,
        device=device_name(request.device),
        settings=request.settings.replace(micro_batch=state.sizes.micro_batch),
        parameters=ParameterCount(state.model),
    )
    if state.update < state.total_updates:
        request.ranks.call_first(lambda: require_space(request, state.update, session.saver.newest_bytes()))
    if session.after_kill:
        record.out_of_memory("update", session.after_kill, update=state.update)
    if session.after_kill or session.is_smaller:
        _store_sizes(session)
    if not state.update:
        save_now(session)
    for note in session.notes:
        record.note(note)
    record.memory(state.update, state.sizes.micro_batch)


def _store_sizes(session: TrainingSession) -> None:
    """Save the state again with its new sizes. Without space for it the checkpoint remains, with the previous sizes."""
    session.saver.forget()
    try:
        save_now(session)
    except CheckpointError as error:
        session.record.unsaved(session.state.update, "checkpoint", str(error))


def before_update(session: TrainingSession) -> str:
    """Evaluate the epoch that has just ended, if there is one, and answer held-out prompts. Returns the reason why
    training is over; empty if another update follows.

    Raises SessionOver when the session has to stop.
    """
    while not (reason := end_reason(session)):
        session.request.ranks.call(session.request.stop.check)
        if not epoch_ended(session):
            break
        evaluate_epoch(session)
        save_if_due(session)
    answer_held_out_prompts(session)
    return reason


def end_reason(session: TrainingSession) -> str:
    """Return the reason why training is over; empty while it is not."""
    state, loaded = session.state, session.request.loaded
    if loaded is None or epoch_ended(session):
        return ""
    if patience_exhausted(loaded.parts, state.history):
        return f"no better epoch in the last {loaded.parts.evaluation.patience}"
    if state.update != state.total_updates:
        return ""
    return (
        f"max_updates={loaded.max_updates}"
        if state.total_updates == loaded.max_updates
        else f"all {loaded.epochs} epochs"
    )


def epoch_ended(session: TrainingSession) -> bool:
    """Return whether an epoch has ended that is not evaluated yet."""
    state = session.state
    evaluated = state.history[-1]["epoch"] if state.history else 0
    return "validation" in session.data and state.at_epoch_end and state.epochs_done > evaluated


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


def one_update(session: TrainingSession) -> None:
    """Make the next update, in microbatches that fit. If the optimizer's step does not fit, return to a checkpoint."""
    assert session.updates is not None
    updates, loaded, deadline = session.updates, session.request.recipe, session.request.stop.deadline
    state, order = updates.state, updates.order
    number = state.update
    samples = len(order.indices(number))
    loss = loss_at(loaded.recipe, number, order.updates_per_epoch, state.total_updates)
    observation = updates.observation
    state.set_learning_rates()

    arguments: dict[str, Any] = {
        "samples": samples,
        "mixed_precision": state.mixed_precision,
        "clip_norm": clip_norm(loaded.parts, loss),
        "run": observation.run if observation else state.cuda_graphs,
        "on_gradients": observation.gradients if observation else None,
    }

    def attempt(micro_batch: int) -> UpdateResult | Failure:
        if observation:
            observation.begin(micro_batch)
        if updates.sharded:
            shards = updates.loader.by_shard(number, micro_batch)
            missing = updates.loader.missing(number, micro_batch) if state.fully_sharded else ()
            return updates.sharded.update(loss, number, shards, missing=missing, **arguments)
        seed_all(derive(loaded.seed, "update", number))
        microbatches = updates.loader.microbatches(number, micro_batch)
        return update(state.model, state.optimizer, loss, microbatches, **arguments)

    failure = ""
    with deadline.measure("update"):
        try:
            result, micro_batch = updates.recovering.run(attempt, state.sizes.micro_batch)
            if state.averages and result.stepped:
                averages = state.averages
                averaged = session.request.ranks.call(lambda: catch_out_of_memory(averages.add))
                failure = averaged.message if isinstance(averaged, Failure) else ""
        except HalfDoneError as error:
            failure = error.message
        except RanksApartError as error:
            oom.record_restart(state, session.request, error)
            raise
    state.finish_update()
    if failure:
        # Outside of the handler: the exception, which holds the tensors of the failed attempt, is gone.
        return_to_checkpoint(session, "optimizer step", failure)
        return
    state.sizes = replace(state.sizes, micro_batch=micro_batch)
    state.update += 1
    updates.meter.add(
        result,
        update=state.update,
        epoch=order.place(number)[0] + 1,
        samples=samples,
        learning_rate=float(state.optimizer.param_groups[0]["lr"]),
    )


def save_if_due(session: TrainingSession) -> None:
    """Begin a save in the background if one is due, also at the end of an epoch that is evaluated."""
    ranks, saver = session.request.ranks, session.saver
    due = ranks.call_and_gather(lambda: saver.due(session.state.update), lambda is_due: [is_due], count=1)[1]
    if any(is_due for (is_due,) in due) or (saver.retains(session.state) and not epoch_ended(session)):
        save_in_background(session)


def save_in_background(session: TrainingSession) -> None:
    """Begin a save in the background. Without memory for the copy training continues: earlier checkpoints remain.

    With `save=none` nothing is saved.
    """
    if session.request.settings.save == "none":
        return
    session.reports.flush()
    with _equal_replicas(session) as ranks:
        result = ranks.call(lambda: catch_out_of_memory(lambda: session.saver.begin(session.state)))
    if isinstance(result, Failure):
        free_unused_memory()
        session.saver.postpone()
        reason = f"out of memory while copying the state: {result.message}"
        session.record.unsaved(session.state.update, "checkpoint", reason)
    session.reports.restart()


def save_now(session: TrainingSession) -> None:
    """Save and wait until the checkpoint is written: the last save of a session must succeed."""
    session.reports.flush()
    with _equal_replicas(session) as ranks:
        if session.state.fully_sharded:
            saved = ranks.call(lambda: session.saver.save(session.state))
            if isinstance(saved, Failure):
                raise no_memory_error("saving a checkpoint", saved.message)
            return
        ranks.call_first(
            lambda: retry_with_freed_memory(lambda: session.saver.save(session.state), "saving a checkpoint")
        )


def save_end(session: TrainingSession) -> None:
    """Save the state in which training has ended; with `save=none` only the weights are left."""
    if session.request.settings.save == "yes":
        save_now(session)


@contextmanager
def _equal_replicas(session: TrainingSession) -> Iterator[Ranks]:
    """Compare the weights of all ranks, then return a context in which the first one has the whole state to be saved.

    Raises RunError on all ranks if their weights differ.
    """
    state, ranks = session.state, session.request.ranks
    require_equal(state.model, ranks, state.update)
    session.saver.settle()
    is_needed = any(needed for (needed,) in ranks.gather([session.saver.needs_save(state)]))
    with state.collected(ranks) if is_needed else nullcontext():
        yield ranks


def return_to_checkpoint(session: TrainingSession, phase: Phase, failure: str) -> None:
    """Return to the last checkpoint with smaller sizes, since weights may be partly updated.

    Call it outside of the handler of the exception, which holds the tensors of the failed attempt.
    """
    state, request = session.state, session.request
    session.reports.flush()
    discard_attempt(state.model, state.optimizer, state.mixed_precision)
    failed_at, micro_batch = state.update, state.sizes.micro_batch
    step = oom.fallback(phase, state, request, failure)
    state.release()
    free_unused_memory()
    state.resize(step.sizes)
    if not request.ranks.call_in_turn(lambda: session.saver.restore(state, allow_inexact=request.allow_inexact)):
        raise gone_error(request.run.checkpoints)
    require_equal(state.model, request.ranks, state.update)
    event = OutOfMemory(failure=failure, micro_batch=micro_batch, action=step.description)
    session.record.out_of_memory(phase, event, update=failed_at, back_to=state.update)
    session.reports.restart()


def finish(session: TrainingSession) -> dict[str, Any]:
    """Save the final state and weights. Returns the validation metrics of the best epoch and the test metrics of its
    weights.
    """
    state, record, run = session.state, session.record, session.request.run
    save_end(session)
    metrics = best_validation(session)
    with weights_for_use(session):
        save_weights(session, "light", run.light, metrics.get("validation", {}))
    if "test" in session.data:
        best = best_entry(session.request.recipe.parts, state.history)
        is_best_loaded = best is not None and load_best(session, best["update"], "the test metrics are of")
        with nullcontext() if is_best_loaded else weights_for_use(session):
            started_at = time.monotonic()
            metrics["test"], evidence = split_evidence(evaluate_on(session, "test"))
            describe_examples(session, "test", evidence, with_images=True)
            seconds = time.monotonic() - started_at
        epoch = state.epochs_done
        record.evaluated(
            "test", state.update, metrics["test"], epoch=epoch, seconds=seconds, best=False, evidence=evidence
        )
    return metrics


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
