"""The evaluation of a probe: some batches of the validation part, and an answer to a held-out prompt."""

import itertools
import time
from contextlib import suppress

from shoestring.check.memory import read_status
from shoestring.check.probe.context import Context
from shoestring.session.stop import SessionOver
from shoestring.train import steps
from shoestring.train.session import TrainingSession
from shoestring.train.undisturbed import compute_undisturbed
from shoestring.train.weights import weights_for_use


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
        steps.evaluate_on(session, "validation")
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
    """Answer a held-out prompt; all of them if the recipe returns a list."""
    answers = session.request.recipe.parts.answers
    assert answers is not None

    def first_rows() -> int:
        rows = answers(session.state.model)
        return len(rows) if isinstance(rows, list | tuple) else len(list(itertools.islice(rows, 1)))

    started = time.monotonic()
    count = compute_undisturbed(session, "answers", first_rows, weights=weights_for_use(session))
    context.synchronize()
    if isinstance(count, int) and count:
        context.report({"stage": "answer", "seconds": (time.monotonic() - started) / count, **context.peaks()})
