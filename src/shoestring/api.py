"""The verbs of the command line as plain functions: each command parses its options and calls the one of its name."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring.errors import UsageError
from shoestring.hardware.catalog import Target
from shoestring.hardware.targets import find as find_target
from shoestring.hardware.targets import known as known_targets
from shoestring.hardware.targets import under
from shoestring.plan.comparison import Comparison
from shoestring.plan.comparison import compare as comparison
from shoestring.plan.estimate import Estimate, make_estimate
from shoestring.plan.plan import Plan
from shoestring.recipe.finding import built_in, choose
from shoestring.report import notebook  # noqa: F401  (registers how a notebook shows what the verbs return)
from shoestring.runs.calibrate import calibrated
from shoestring.runs.launch import LaunchRequest, launch

if TYPE_CHECKING:
    from shoestring.check.preflight import Checked
    from shoestring.runs.evaluate import Evaluated
    from shoestring.train.loop import Outcome


def recipes() -> list[dict[str, Any]]:
    """The built-in recipes: name, what it is, and its options with defaults, choices and help."""
    return built_in()


def targets() -> list[Target]:
    """Where a run can be planned for: platforms, bare GPUs, and this machine as `local`, which is looked at."""
    return [*known_targets().values(), find_target("local")]


def estimate(recipe: str | object, on: str = "local", **values: object) -> Estimate:
    """The peak memory of one training step, as named parts, without a GPU.

    `recipe` is a built-in name, a path, or an object with `model()`, `batch(size)` and `loss(model, batch)`; `values`
    are its options and the settings. A microbatch that is not given is the effective batch, a precision fp32.

    Raises UsageError for anything unknown, TraceError when a step of the model cannot be followed.
    """
    loaded, wanted = choose(recipe, values)
    return make_estimate(loaded, find_target(on), wanted)


def plan(
    recipe: str | object,
    on: str = "local",
    *,
    limit_seconds: float | None = None,
    disk_bytes: int | None = None,
    usd_per_hour: float | None = None,
    calibrate: str | Path | None = None,
    **values: object,
) -> Plan:
    """The fastest settings that fit the target, and what they cost in memory, time, sessions and disk.

    A session's `limit_seconds` and the run's `disk_bytes` count instead of the platform's limits, `usd_per_hour` of
    one GPU instead of a list price, and the measured time of a run `calibrate` on the same GPU scales predictions. The
    other arguments and the errors are those of `estimate`; what is not given is chosen.
    """
    plans = compare(
        recipe,
        [on],
        limit_seconds=limit_seconds,
        disk_bytes=disk_bytes,
        usd_per_hour=usd_per_hour,
        calibrate=calibrate,
        **values,
    ).plans
    return plans[0]


def compare(
    recipe: str | object,
    on: Iterable[str],
    *,
    limit_seconds: float | None = None,
    disk_bytes: int | None = None,
    usd_per_hour: float | None = None,
    calibrate: str | Path | None = None,
    **values: object,
) -> Comparison:
    """A plan for each of the targets `on`, side by side with time and cost.

    The other arguments and the errors are those of `plan`, and count for every target.
    """
    loaded, wanted = choose(recipe, values)
    where = [under(find_target(name), session_seconds=limit_seconds, disk_bytes=disk_bytes) for name in on]
    measured = calibrated(Path(calibrate)) if calibrate else None
    return comparison(loaded, where, wanted, usd_per_hour=usd_per_hour, calibration=measured)


def check(
    recipe: str | object | None = None, on: str = "local", *, run: str | Path = "runs", **values: object
) -> "Checked":
    """Look at this machine before a run in the directory `run` under the limits of `on`: GPU, build, disk, data, ...

    With a recipe its plan for this machine is made, and a few of its updates are tried in a process of their own.

    Raises UsageError for a wrong question; what is wrong with the machine is a finding.
    """
    from shoestring.check.preflight import preflight

    if recipe is None:
        if values:
            raise UsageError(f"options need a recipe: {', '.join(values)}", hint="shoestring check RECIPE --set ...")
        return preflight(on, Path(run))
    loaded, wanted = choose(recipe, values)
    return preflight(on, Path(run), loaded, wanted)


def train(
    recipe: str | object,
    plan: Plan | None = None,
    *,
    run: str | Path,
    on: str = "local",
    limit_seconds: float | None = None,
    disk_bytes: int | None = None,
    allow_inexact: bool = False,
    started: float | None = None,
    **values: object,
) -> "Outcome":
    """Train until the run in the directory `run` is finished or this session is over; again to continue.

    Without a plan, or with one made for another device, the run is planned for this machine first. `on` lends its
    platform's limits (session hours, disk); `limit_seconds` of this session and `disk_bytes` of the run's directory
    count instead. The session began when `time.monotonic()` said `started`, by default now. A run keeps its options;
    other settings, versions or hardware need `allow_inexact`.

    Raises UsageError for a wrong question, RunError when the run cannot go on.
    """
    request = LaunchRequest(
        run=Path(run),
        on=on,
        limit_seconds=limit_seconds,
        disk_bytes=disk_bytes,
        started=time.monotonic() if started is None else started,
        allow_inexact=allow_inexact,
    )
    return launch(recipe, values, request, plan)


def evaluate(
    directory: str | Path,
    *,
    recipe: str | object | None = None,
    on: str = "local",
    limit_seconds: float | None = None,
    **values: object,
) -> "Evaluated":
    """The metrics of a run's weights, or of one of its checkpoints', without an optimizer in memory.

    `directory` is a run (its best weights, else its last ones, else those of its newest checkpoint), its `best` or
    `light`, or one of its checkpoints. Options are the run's own but for `values`, such as `data`; a `recipe` is only
    needed where the run's own is not found any more. Nothing is written.

    Raises UsageError for a wrong question, CheckpointError for weights that are damaged or another model's.
    """
    from shoestring.runs.evaluate import evaluate as evaluated

    return evaluated(Path(directory), values, recipe=recipe, on=on, limit_seconds=limit_seconds)


def report(run: str | Path) -> Path:
    """Draw a run's directory as a self-contained page; returns the page's path.

    Raises UsageError when the directory holds no run.
    """
    from shoestring.report.page.document import write

    return write(Path(run))
