"""The evaluation of a probe: some batches of the validation part, and an answer to a held-out prompt."""

import itertools
import time
from contextlib import suppress

from shoestring.runs.check.memory import read_status
from shoestring.runs.check.probe.context import Context
from shoestring.training.evaluation_steps import evaluate_on
from shoestring.training.session.stop import SessionOver
from shoestring.training.training_session import TrainingSession
from shoestring.training.undisturbed import compute_undisturbed
from shoestring.training.weights import weights_for_use


def evaluate(context: Context, session: TrainingSession) -> None:
    """Evaluate some batches of the validation part, at most all of them."""
    before_bytes = read_status("VmRSS")
    since, durations, samples = time.monotonic(), list[float](), [0]

    def is_enough() -> bool:
        nonlocal since
        context.synchronize()
        durations.append(time.monotonic() - since)
        samples.append(context.deadline.samples["evaluation"])
        since = time.monotonic()
        return context.budget.has_evaluation(durations, since)

    context.deadline.observing("evaluation batch", is_enough)
    with suppress(SessionOver), weights_for_use(session):
        evaluate_on(session, "validation")
    context.report(
        {
            "stage": "evaluation",
            "seconds": durations,
            "samples": [after - before for before, after in itertools.pairwise(samples)],
            "left_bytes": max(0, read_status("VmRSS") - before_bytes),
            **context.peaks(),
        }
    )


def answer(context: Context, session: TrainingSession) -> None:
    """Answer held-out prompts: all of them if there is time, and else at least the first."""
    answers = session.request.recipe.parts.evaluation.answers
    assert answers is not None

    def answer_in_time() -> tuple[int, bool]:
        count = 0
        for count, _ in enumerate(answers(session.state.model), start=1):
            if context.elapsed() > context.budget.seconds:
                return count, False
        return count, True

    started = time.monotonic()
    result = compute_undisturbed(session, "answers", answer_in_time, weights=weights_for_use(session))
    context.synchronize()
    if isinstance(result, tuple) and result[0]:
        count, is_complete = result
        seconds = (time.monotonic() - started) / count
        stage = {"stage": "answer", "seconds": seconds, "count": count, "is_complete": is_complete}
        context.report({**stage, **context.peaks()})
