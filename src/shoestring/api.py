"""The verbs of the command line as plain functions: estimate, plan, train, report."""

from pathlib import Path
from typing import TYPE_CHECKING

from shoestring.hardware import targets
from shoestring.launch import choose, launch
from shoestring.plan.estimate import Estimate, make_estimate
from shoestring.plan.plan import Plan, make_plan

if TYPE_CHECKING:
    from shoestring.train.loop import Outcome


def estimate(recipe: str | object, on: str = "local", **values: object) -> Estimate:
    """The peak memory of one training step, as named parts, without a GPU.

    `recipe` is a built-in name, a path, or an object with `model()`, `batch(size)` and `loss(model, batch)`; `values`
    are its options and the settings. A microbatch that is not given is the effective batch, a precision fp32.

    Raises QuestionError for anything unknown, TraceError when a step of the model cannot be followed.
    """
    loaded, wanted = choose(recipe, values)
    return make_estimate(loaded, targets.find(on), wanted)


def plan(recipe: str | object, on: str = "local", **values: object) -> Plan:
    """The fastest settings that fit the target, and what they cost in memory, time, sessions and disk.

    Arguments and errors are those of `estimate`; what is not given is chosen.
    """
    loaded, wanted = choose(recipe, values)
    return make_plan(loaded, targets.find(on), wanted)


def train(
    recipe: str | object,
    plan: Plan | None = None,
    *,
    run: str | Path,
    on: str = "local",
    limit_seconds: float | None = None,
    disk_bytes: int | None = None,
    allow_inexact: bool = False,
    **values: object,
) -> "Outcome":
    """Train until the run in the directory `run` is finished or this session is over; again to continue.

    Without a plan, or with one made for another device, the run is planned for this machine first. `on` lends its
    platform's limits (session hours, disk); `limit_seconds` from now and `disk_bytes` of the run's directory count
    instead. A run keeps its options; other settings, versions or hardware need `allow_inexact`.

    Raises QuestionError for a wrong question, RunError when the run cannot go on.
    """
    return launch(
        recipe,
        values,
        plan=plan,
        run=Path(run),
        on=on,
        limit_seconds=limit_seconds,
        disk_bytes=disk_bytes,
        allow_inexact=allow_inexact,
    )


def report(run: str | Path) -> Path:
    """Draw a run's directory as a self-contained page; returns the page's path.

    Raises QuestionError when the directory holds no run.
    """
    from shoestring.report.page import write

    return write(Path(run))
