"""How long the evaluations of a run and its answers to held-out prompts take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from shoestring.base.errors import ShoestringError
from shoestring.hardware.catalog import Target
from shoestring.planning.candidates import UNTRACED, Candidate
from shoestring.planning.counts import Counts
from shoestring.planning.estimate.span import NOTHING, Span
from shoestring.planning.estimate.time import update_seconds
from shoestring.planning.sessions import Parts
from shoestring.planning.trace import Tracer
from shoestring.recipe.options import LoadedRecipe

SHORTEST_GENERATION = 0.25
"""An assumption: the low end of generation has texts of a quarter of their greatest length. How early they end is only
known when the model generates them."""
_EVALUATION_RANGE = (0.6, 2.0)
"""An assumption: factors on the predicted seconds of an evaluation, of which no measurement was compared with one."""


@dataclass(frozen=True, kw_only=True)
class Evaluations:
    """The durations of evaluating the parts of the data other than the training part, and of answering prompts."""

    parts: Parts
    """The duration of an evaluation, by the part of the data; without the parts whose duration is not known."""
    answers: Span | None = None
    """The duration of answering all held-out prompts; None without any, or if it is not known."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """What is not known, and what would make it known, as in `Work`."""

    @property
    def validation_seconds(self) -> float | None:
        """The seconds of an evaluation of the validation data; 0 if there are none, None if they are not known."""
        return None if "evaluations" in self.unknown else self.parts.get("validation", NOTHING).seconds


def predict_evaluations(
    tracer: Tracer, loaded: LoadedRecipe, target: Target, chosen: Candidate, counts: Counts
) -> Evaluations:
    """Predict the evaluations of a run with the chosen settings."""
    if chosen.time is None:
        return Evaluations(parts={})
    samples = {name: count for name, count in counts.samples.items() if name != "train" and count}
    unknown, parts, answers = dict[str, str](), dict[str, Span](), None
    if samples:
        per_sample = _evaluation_seconds(tracer, loaded, target, chosen)
        if per_sample is None:
            unknown["evaluations"] = "the recipe does not tell its evaluation_work(); the first session measures it"
        else:
            generates = loaded.parts.evaluation.evaluation_work is not None
            parts = {name: _with_range(per_sample * count, generates=generates) for name, count in samples.items()}
    if loaded.parts.evaluation.answers:
        seconds = (
            _traced_seconds(tracer, target, chosen, "answers", 1) if loaded.parts.evaluation.answers_work else None
        )
        if seconds is None:
            unknown["answers"] = "the recipe does not tell its answers_work(); the first session measures it"
        else:
            answers = _with_range(seconds, generates=True)
    return Evaluations(parts=parts, answers=answers, unknown=unknown)


def _evaluation_seconds(tracer: Tracer, loaded: LoadedRecipe, target: Target, chosen: Candidate) -> float | None:
    """Return the seconds of evaluating a sample; None if they are not known."""
    assert chosen.time
    parts = loaded.parts
    if parts.evaluation.evaluation_work:
        size = loaded.evaluation_size(chosen.settings.micro_batch or 1)
        seconds = _traced_seconds(tracer, target, chosen, "evaluation", size)
    elif parts.evaluation.measured:
        return None
    else:
        seconds, size = chosen.time.parts.get("forward", 0.0), loaded.effective_batch
    gpus = chosen.settings.processes
    # Without checkpointing and dropout the forward pass of an evaluation is that of training at most. That of training
    # is already of all GPUs.
    is_divided = parts.evaluation.evaluation_work and parts.divides_evaluation and target.device.kind != "cpu"
    return None if seconds is None else seconds / size / (gpus if is_divided else 1)


def _traced_seconds(
    tracer: Tracer, target: Target, chosen: Candidate, work: Literal["evaluation", "answers"], size: int
) -> float | None:
    """Return the seconds of evaluating so many samples, or of answering all prompts; None if it cannot be traced."""
    settings = chosen.settings.replace(
        micro_batch=size, checkpointing="no", gpus=1, logical_shards=1, sharding=None, compile="no", **UNTRACED
    )
    try:
        trace = tracer.trace_inference(settings, target.device, work=work)
    except ShoestringError:
        return None
    seconds = update_seconds(trace, target.device, 1)
    return seconds.value if seconds else None


def _with_range(seconds: float, *, generates: bool) -> Span:
    low, high = _EVALUATION_RANGE
    return Span(seconds, seconds * low * (SHORTEST_GENERATION if generates else 1.0), seconds * high)
