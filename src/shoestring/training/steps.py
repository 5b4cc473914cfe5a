"""The steps of the training loop, in the order in which it runs them. A library's trainer runs them in callbacks."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from torch import nn

from shoestring.base.errors import CheckpointError, UsageError
from shoestring.recipe.after_update import after_update_of
from shoestring.recipe.losses import clip_norm, loss_at
from shoestring.techniques.parameter_count import ParameterCount
from shoestring.training import oom
from shoestring.training.embedding_error import embedding_error
from shoestring.training.engine.after_update import run_after_update
from shoestring.training.engine.environment import device_name
from shoestring.training.engine.loss_changes import LossChanges
from shoestring.training.engine.memory import (
    Failure,
    HalfDoneError,
    catch_out_of_memory,
)
from shoestring.training.engine.parallel.errors import RanksApartError
from shoestring.training.engine.state import TrainingState
from shoestring.training.evaluation import best_entry, patience_exhausted, split_evidence
from shoestring.training.evaluation_steps import best_validation, evaluate_epoch, evaluate_on
from shoestring.training.held_out_answers import answer_held_out_prompts
from shoestring.training.illustrations import describe_examples
from shoestring.training.processes.steps import agreed, by_first
from shoestring.training.save_steps import return_to_checkpoint, save_end, save_if_due, save_now
from shoestring.training.space import require_space
from shoestring.training.training_session import TrainingSession
from shoestring.training.weights import LAST_WEIGHTS, load_best, save_weights, weights_for_use


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
        _require_space(session)
    if session.after_kill:
        record.out_of_memory("update", session.after_kill, update=state.update)
    if session.after_kill or session.is_smaller:
        _store_sizes(session)
    if not state.update:
        save_now(session)
    for note in session.notes:
        record.note(note)
    record.memory(state.update, state.sizes.micro_batch)


@by_first
def _require_space(session: TrainingSession) -> None:
    require_space(session.request, session.state.update, session.saver.newest_bytes())


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
        _check_stop(session)
        if not session.epoch_ended:
            break
        evaluate_epoch(session)
        save_if_due(session)
    answer_held_out_prompts(session)
    return reason


@agreed
def _check_stop(session: TrainingSession) -> None:
    session.request.stop.check()


def end_reason(session: TrainingSession) -> str:
    """Return the reason why training is over; empty while it is not."""
    state, loaded = session.state, session.request.loaded
    if loaded is None or session.epoch_ended:
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
    hook = after_update_of(loaded.parts, loss)
    changes = None if number else LossChanges(state.model, loaded.recipe, state.untrained)

    arguments: dict[str, Any] = {
        "samples": samples,
        "mixed_precision": state.mixed_precision,
        "clip_norm": clip_norm(loaded.parts, loss),
        "run": observation.run if observation else state.cuda_graphs,
        "on_gradients": observation.gradients if observation else None,
    }
    failure = ""
    with deadline.measure("update"):
        try:
            for attempt in updates.recovering.attempts(state.sizes.micro_batch):
                with attempt:
                    if observation:
                        observation.begin(attempt.micro_batch)
                    if state.fully_sharded:
                        arguments["missing"] = updates.loader.missing(number, attempt.micro_batch)
                    # No variable refers to the shards: after out-of-memory it would keep a batch on the GPU.
                    attempt.result = updates.strategy.update(
                        loss, number, updates.loader.by_shard(number, attempt.micro_batch), **arguments
                    )
            result, micro_batch = attempt.result, attempt.micro_batch
            state.finish_update()
            if changes:
                changes.observe()
            if result.stepped:
                outcome = catch_out_of_memory(lambda: _follow_step(session, state, hook, number))
                failure = outcome.message if isinstance(outcome, Failure) else ""
        except HalfDoneError as error:
            failure = error.message
        except IndexError as error:
            if explained := embedding_error(error, session, number):
                raise explained from error
            raise
        except RanksApartError as error:
            oom.record_restart(state, session.request, error)
            raise
        finally:
            state.reset_trained()
    if failure:
        # Outside of the handler: the exception, which holds the tensors of the failed attempt, is gone.
        return_to_checkpoint(session, "optimizer step", failure)
        return
    state.sizes = replace(state.sizes, micro_batch=micro_batch)
    state.update += 1
    if changes:
        _report_changes(session, changes, has_hook=hook is not None)
    updates.meter.add(
        result,
        update=state.update,
        epoch=order.place(number)[0] + 1,
        samples=samples,
        learning_rate=float(state.optimizer.param_groups[0]["lr"]),
    )


@agreed
def _follow_step(
    session: TrainingSession, state: TrainingState, hook: Callable[[nn.Module], Any] | None, number: int
) -> None:
    """Do what follows a step of the optimizer: the recipe's `after_update`, then the average of the weights."""
    if hook:
        assert session.updates is not None
        generators = session.updates.strategy.generators.own
        assert generators is not None
        run_after_update(hook, state.model, seed=session.request.recipe.seed, number=number, generators=generators)
        state.finish_update()
    if state.averages:
        state.averages.add()


@agreed
def _report_changes(session: TrainingSession, changes: LossChanges, *, has_hook: bool) -> None:
    """Note what the losses of the run's first update have changed.

    Raises UsageError for a change that the logical shards of an update would make one after another.
    """
    if changes.unrepeatable and session.request.shards.count > 1:
        raise UsageError(
            f"loss() changes {changes.unrepeatable[0]} of the model, once for each microbatch, so that the logical "
            f"shards of an update, {session.request.shards.count}, would not compute the same",
            hint="do it in after_update(model), which is called once after each update, on all GPUs",
        )
    for note in changes.notes(has_hook=has_hook):
        session.record.note(note)


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
        record.test_weights = load_best(session, best["update"], "the test metrics are of") if best else LAST_WEIGHTS
        with weights_for_use(session) if record.test_weights == LAST_WEIGHTS else nullcontext():
            started_at = time.monotonic()
            metrics["test"], evidence = split_evidence(evaluate_on(session, "test"))
            describe_examples(session, "test", evidence, with_images=True)
            seconds = time.monotonic() - started_at
        epoch = state.epochs_done
        record.evaluated(
            "test", state.update, metrics["test"], epoch=epoch, seconds=seconds, best=False, evidence=evidence
        )
    return metrics
