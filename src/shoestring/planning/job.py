"""What a run does beside its updates, and how long that takes: starting, evaluating, answering, saving."""

from __future__ import annotations

from collections.abc import Iterator

from shoestring.base.units import plural
from shoestring.hardware.catalog import Target
from shoestring.hardware.probe import platform_here
from shoestring.planning.candidates import Candidate
from shoestring.planning.costs import PlannedDisk
from shoestring.planning.estimate.span import Span
from shoestring.planning.evaluations import Evaluations
from shoestring.planning.sessions import WAITING, Work
from shoestring.planning.times import PlannedTime
from shoestring.recipe.options import LoadedRecipe

_REMOTE_START = Span(60.0, 20.0, 180.0)
"""An assumption: the seconds of imports, of the plan's check and of reading the data on a platform."""
_START_RATIO = (0.5, 2.5)
"""Factors on the seconds in which the process that traces has started here, for the range of those of training: both
import torch and the recipe's libraries, read the data and build the model."""
_PLANNING_RATIO = (0.7, 1.5)
"""Factors on the seconds in which a plan was made, for those of training on the same machine, which makes it again."""
_WARM_UP = {"cuda": Span(5.0, 1.0, 20.0), "cpu": Span(0.2, 0.0, 1.0)}
"""An assumption: the seconds by which the first update of a session takes longer, since kernels are loaded and chosen
and memory is taken from the driver."""
_DISK_RATE = Span(200e6, 1e9, 50e6)
"""An assumption: bytes/s of writing and reading files, expected, on a fast local disk and on a slow network disk."""
_SAVE = Span(0.1, 0.02, 0.5)
"""An assumption: the seconds of a save of nothing: files are created, synced and renamed."""
_SAVING_SHARE = Span(0.01, 0.0, 0.02)
"""Saves take at most 2% of the time (training/save_policy.py), less if they are small."""
_IMPROVING = Span(0.5, 0.0, 1.0)
"""An assumption: the share of the epochs that improve on all earlier ones, whose weights are saved as the best."""


def work_of(
    time: PlannedTime,
    evaluations: Evaluations,
    *,
    loaded: LoadedRecipe,
    target: Target,
    chosen: Candidate,
    disk: PlannedDisk,
    opening_seconds: float,
    planning_seconds: float,
) -> Work:
    """Return what the run does, with its durations.

    `opening_seconds` are those in which the recipe was opened here, `planning_seconds` those that the plan has taken.
    """
    facts = chosen.trace.facts
    full, light = _files(disk.full_checkpoint_bytes), _files(disk.light_checkpoint_bytes)
    saves = chosen.settings.save == "yes"
    validation, test = (evaluations.parts.get(name) for name in ("validation", "test"))
    answers = {} if evaluations.answers is None else {"answers": evaluations.answers}
    epoch_end = {} if validation is None else {"evaluation": validation, "saving": light.scaled(_IMPROVING)}
    is_here = target.platform is not None and target.platform.name == platform_here().name
    low, high = (factor * planning_seconds for factor in _PLANNING_RATIO)
    planning = {"planning": Span(planning_seconds, low, high)} if is_here else {}
    starting = _start(opening_seconds) if is_here else _REMOTE_START
    weights = {"loading weights": _files(facts.weight_bytes)} if facts.is_pretrained else {}
    return Work(
        update=time.parts,
        epoch_end={**epoch_end, **answers},
        start={"starting": starting, "first update": _WARM_UP[target.device.kind]},
        first={**planning, **weights, **answers, "saving": full},
        restart={"loading weights": full + _files(facts.frozen_bytes)},
        stop={"saving": full},
        last={"saving": light} | ({} if test is None else {"evaluation": test}),
        saving_share=_SAVING_SHARE if saves else Span(0.0, 0.0, 0.0),
        unknown={**evaluations.unknown, **dict(_unknown(loaded, target, chosen))},
    )


def _start(opening_seconds: float) -> Span:
    low, high = _START_RATIO
    return Span(opening_seconds, low * opening_seconds, high * opening_seconds)


def _files(size: int) -> Span:
    """Return the duration of writing or reading a checkpoint of so many bytes."""
    rate = _DISK_RATE
    return _SAVE + Span(size / rate.seconds, size / rate.low, size / rate.high)


def _unknown(loaded: LoadedRecipe, target: Target, chosen: Candidate) -> Iterator[tuple[str, str]]:
    """Yield what the durations leave out, and what would make it known."""
    if loaded.parts.learning.rollout and not chosen.trace.counts_steps:
        yield "generation", "the recipe's rollout() does not tell how often its steps run (recipe/generation.py, Step)"
    if chosen.settings.offload != "no":
        yield "the CPU's part of an update", "it updates the optimizer states, which are in its memory"
    if chosen.settings.offload == "parameters":
        yield "copying weights", "from host memory to the GPU in each forward and backward, gradients back"
    if chosen.settings.compile != "no":
        yield "compiling the model", "some minutes for a large one at the start of each session"
    if loaded.parts.data.data:
        yield WAITING, "if loading them is slower than training: shoestring check on the target measures it"
    if loaded.parts.evaluation.patience is not None:
        epochs = plural(loaded.parts.evaluation.patience, "epoch")
        yield "early stopping", f"the run is shorter if {epochs} bring no improvement"
    if target.platform is not None and target.platform.weekly_gpu_hours:
        yield "the platform", "its queue and the start of its machine before each session"
