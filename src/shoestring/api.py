"""The verbs of the command line as functions: each command parses its options and calls the function of its name.

The functions import what they need, so that `shoestring --help` and `import shoestring` start without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, overload

from shoestring.base.errors import UsageError
from shoestring.base.packages.broken import usable_libraries

if TYPE_CHECKING:
    from shoestring.answers.watch.view import View
    from shoestring.hardware.catalog import Target
    from shoestring.hardware.measured import MeasuredRates
    from shoestring.planning.comparison import Comparison
    from shoestring.planning.estimation import Estimate
    from shoestring.planning.inference import InferencePlan
    from shoestring.planning.plan import Plan
    from shoestring.recipe.absent_data import Lengths
    from shoestring.remote.notebook.writing import WrittenNotebook
    from shoestring.runs.check.preflight import CheckResult
    from shoestring.runs.evaluate import Evaluation
    from shoestring.runs.export import Export
    from shoestring.runs.loaded import LoadedModel
    from shoestring.runs.predict import Predictions
    from shoestring.runs.replayed import Replay
    from shoestring.training.session.config_file import ConfigFile
    from shoestring.training.session.outcome import Outcome


def recipes(recipe: str | None = None) -> list[dict[str, Any]]:
    """Return the recipes of installed packages, or only `recipe`: name, summary, origin, and options with defaults,
    choices and help.

    `recipe` is the name of one of them or a path to a file, which is executed. The keys of each dict are those of the
    JSON of `shoestring recipes`.

    Raises UsageError for an unknown recipe.
    """
    from shoestring.recipe.finding import describe, describe_installed, find

    return describe_installed() if recipe is None else [describe(find(recipe))]


def targets() -> list[Target]:
    """Return the known targets: platforms, single GPUs, and this machine as `local`, which is detected.

    The fields of a target have bytes, FLOP/s, bytes/s and hours, each with its source.
    """
    from shoestring.hardware.targets import find, known

    return [*known().values(), find("local")]


def estimate(recipe: str | object, on: str = "local", **values: object) -> Estimate:
    """Estimate the peak memory of one training step as named parts, without a GPU.

    `recipe` is the name of one, a path, or an object with `model()`, `batch(size)` and `loss(model, batch)`; `values`
    are its options and the settings. The default microbatch is the effective batch, the default precision fp32.

    Raises UsageError for unknown names and invalid values, TraceError if a training step of the model cannot be traced.
    """
    with usable_libraries():
        from shoestring.hardware.targets import find
        from shoestring.planning.estimation import make_estimate
        from shoestring.recipe.finding import choose_for_plan

    loaded, settings = choose_for_plan(recipe, values)
    return make_estimate(loaded, find(on), settings)


@overload
def plan(recipe: str | object, on: Literal["kaggle"], **values: Any) -> Comparison: ...
@overload
def plan(recipe: str | object, on: str = "local", **values: Any) -> Plan: ...
def plan(
    recipe: str | object,
    on: str = "local",
    *,
    limit_seconds: float | None = None,
    disk_bytes: int | None = None,
    usd_per_hour: float | None = None,
    calibrate: str | Path | None = None,
    probe: bool | None = None,
    **values: object,
) -> Plan | Comparison:
    """Choose the fastest settings that fit the target, and predict their memory, time, sessions and disk.

    `limit_seconds` of a session and `disk_bytes` of the run's directory replace the platform's limits, `usd_per_hour`
    of one GPU replaces the list price, and the measured time of the run `calibrate`, made on the same GPU, scales the
    predictions; a file of `measure` there replaces the rates that they are made of. Options and settings in `values`
    are fixed, all others are chosen. On `kaggle` all machines of Kaggle are compared, as `compare` does. A plan for
    this machine (`local`, `cpu`) is measured: a few updates are made in a child process and discarded, unless `probe`
    is False; by default unless SHOESTRING_PROBE=0 is set. The errors are those of `estimate`.
    """
    comparison = compare(
        recipe,
        [on],
        limit_seconds=limit_seconds,
        disk_bytes=disk_bytes,
        usd_per_hour=usd_per_hour,
        calibrate=calibrate,
        by_seconds=None,
        probe=probe,
        **values,
    )
    return comparison if comparison.platform else comparison.plans[0]


def plan_inference(recipe: str | object, on: str = "local", **values: object) -> InferencePlan:
    """Choose the number of inputs that a trained model predicts at once, and predict memory and speed, without a GPU.

    Options and settings in `values` are fixed. The errors are those of `estimate`.
    """
    with usable_libraries():
        from shoestring.hardware.targets import find
        from shoestring.planning.inference import plan_inference
        from shoestring.recipe.finding import choose_for_plan

    loaded, settings = choose_for_plan(recipe, values)
    return plan_inference(loaded, find(on), settings)


def compare(
    recipe: str | object,
    on: str | Iterable[str],
    *,
    limit_seconds: float | None = None,
    disk_bytes: int | None = None,
    usd_per_hour: float | None = None,
    calibrate: str | Path | None = None,
    by_seconds: float | None = None,
    probe: bool | None = None,
    **values: object,
) -> Comparison:
    """Plan for each of the targets `on`, and compare time and cost. The target `kaggle` is all machines of Kaggle.

    `by_seconds` is the time from now within which the run has to be done: `cheapest` is the plan that does it for the
    least money.
    The other arguments and the errors are those of `plan` and apply to every target.
    """
    with usable_libraries():
        from shoestring.hardware.targets import find, groups, with_limits, with_machines
        from shoestring.planning.comparison import compare
        from shoestring.recipe.finding import choose_for_plan
        from shoestring.runs.calibrate import load_calibration
        from shoestring.runs.check.probe.probing import is_enabled, measured_here

    _require_limits(by_seconds=by_seconds)
    _require_limits(limit_seconds=limit_seconds, disk_bytes=disk_bytes, usd_per_hour=usd_per_hour)
    loaded, settings = choose_for_plan(recipe, values)
    names = [on] if isinstance(on, str) else list(on)
    targets = [
        with_limits(find(name), session_seconds=limit_seconds, disk_bytes=disk_bytes) for name in with_machines(names)
    ]
    calibration = load_calibration(_path(calibrate)) if calibrate else None
    comparison = compare(
        loaded,
        targets,
        settings,
        usd_per_hour=usd_per_hour,
        calibration=calibration,
        by_hours=None if by_seconds is None else by_seconds / 3600,
        platform=next((name for name in names if name in groups()), None),
    )
    if not is_enabled(probe):
        return comparison
    return replace(comparison, plans=tuple(measured_here(comparison.plans, loaded, settings)))


def target_names(on: Iterable[str]) -> list[str]:
    """Return the names of targets; a platform with several machines, such as kaggle, stands for all of them."""
    from shoestring.hardware.targets import with_machines

    return with_machines(on)


def priced_targets() -> list[str]:
    """Return the names of the targets that everybody can have and whose price is known, the free ones first."""
    from shoestring.hardware.prices import price
    from shoestring.hardware.targets import known

    return [name for name, target in known().items() if price(target) and not target.depends_on_account]


def check(
    recipe: str | object | None = None, on: str = "local", *, run: str | Path = "runs", **values: object
) -> CheckResult:
    """Check this machine before a run in the directory `run` under the limits of `on`: GPU, build, disk, data, ...

    With a recipe, also plan it for this machine and run a few of its updates in a separate process.

    Raises UsageError for invalid usage; a problem of the machine is a finding, not an error.
    """
    from shoestring.recipe.finding import choose
    from shoestring.runs.check.preflight import preflight

    if recipe is None:
        if values:
            raise UsageError(f"options need a recipe: {', '.join(values)}", hint="shoestring check RECIPE --set ...")
        return preflight(on, _path(run))
    loaded, settings = choose(recipe, values)
    return preflight(on, _path(run), loaded, settings)


def write_lengths(
    recipe: str | object,
    file: str | Path,
    *,
    overwrite: bool = False,
    progress: Callable[[float], object] = lambda _: None,
    **values: object,
) -> Lengths:
    """Read all data of a recipe, and write how many of its training samples have each length to a JSON file.

    `plan(..., lengths=file)` plans these data on a machine without them. `progress` is called with the seconds that are
    left. A file that exists is replaced only with `overwrite`.

    Raises UsageError for a recipe whose samples have no lengths, and for a file that exists.
    """
    with usable_libraries():
        from shoestring.recipe.finding import choose
        from shoestring.runs.check.lengths import write_lengths

    loaded, _ = choose(recipe, values)
    return write_lengths(loaded, _path(file), overwrite=overwrite, progress=progress)


def measure(
    file: str | Path,
    on: str = "local",
    *,
    overwrite: bool = False,
    progress: Callable[[float], object] = lambda _: None,
) -> MeasuredRates:
    """Measure the rates of this machine's GPU (or with `on="cpu"` its CPU), and write them to a JSON file.

    `plan(..., on=file)` and the other verbs take the file as a target, `plan(..., calibrate=file)` as measured rates.
    It takes about two minutes on a GPU and 40 s on a CPU. `progress` is called with the seconds that are left. If it is
    interrupted, no file is written; a file that exists is replaced only with `overwrite`.

    Raises UsageError for another target or a file that exists, RunError if the device cannot be measured.
    """
    with usable_libraries():
        from shoestring.runs.check.rates.writing import measure_to_file

    return measure_to_file(_path(file), on, overwrite=overwrite, progress=progress)


def train(
    recipe: str | object,
    plan: Plan | None = None,
    *,
    run: str | Path,
    on: str = "local",
    limit_seconds: float | None = None,
    disk_bytes: int | None = None,
    allow_inexact: bool = False,
    allow_cpu: bool = False,
    started: float | None = None,
    log: Sequence[str] = (),
    backup: str | Path | None = None,
    from_url: str | Path | None = None,
    probe: bool | None = None,
    **values: object,
) -> Outcome:
    """Train until the run in the directory `run` is finished or this session is over; call it again to continue.

    Without a plan, or with one made for another device, the run is first planned for this machine. The platform of the
    target `on` provides the limits (session hours, disk), which `limit_seconds` of this session and `disk_bytes` of the
    run's directory replace. `started` is the value of `time.monotonic()` at the start of the session, by default now. A
    run keeps its options; other settings, versions or hardware need `allow_inexact`. If `on` is a target with a GPU and
    this machine has none, a new run is refused unless `allow_cpu`. `log` has names of logs, such as
    "tensorboard", which are written below `run/logs` while it trains, and in later sessions as well. Each checkpoint
    is copied to the folder or URL `backup` in the background, and a run that is not in `run` begins from the
    newest copy in `from_url`; if there is none, and it is the place of `backup`, the run begins anew.
    Before a new run the plan is measured, as `plan` does with `probe`; the run's bits do not depend on it.

    In the kernel of a notebook, a recipe that is named is trained by a child process, and the cell shows the run.
    Interrupting the cell pauses it.

    Raises UsageError for invalid usage, RunError if the run cannot continue.
    """
    with usable_libraries():
        from shoestring.answers import live
        from shoestring.runs.launch import launch
        from shoestring.runs.training import LaunchRequest

    _require_limits(limit_seconds=limit_seconds, disk_bytes=disk_bytes)
    request = LaunchRequest(
        run=_path(run),
        on=on,
        limit_seconds=limit_seconds,
        disk_bytes=disk_bytes,
        started=time.monotonic() if started is None else started,
        allow_inexact=allow_inexact,
        allow_cpu=allow_cpu,
        log=tuple(log),
        backup=None if backup is None else str(backup),
        from_url=None if from_url is None else str(from_url),
        probe=probe,
    )
    if isinstance(recipe, str) and live.is_notebook():
        return live.train_in_child(recipe, values, request, plan)
    return launch(recipe, values, request, plan)


def train_supervised(
    work: Callable[[], int],
    recipe: str,
    *,
    run: str | Path,
    on: str = "local",
    limit_seconds: float | None = None,
    allow_cpu: bool = False,
    started: float | None = None,
) -> Outcome:
    """Run `work`, which calls `train` and returns an exit status, in a child process that is killed at the limit.

    Returns the outcome of a session that had to be ended at its limit. If the child ends by itself, this process exits
    with its status. This process must not have imported torch. The other arguments are those of `train`.

    Raises UsageError for an unknown target, RunError if the child was killed by another process.
    """
    from shoestring.runs.supervised import train_supervised
    from shoestring.training.session.stored import resume_command

    return train_supervised(
        work,
        Path(run),
        on=on,
        limit_seconds=limit_seconds,
        started=time.monotonic() if started is None else started,
        resume_command=resume_command(recipe, Path(run), on, allow_cpu=allow_cpu),
    )


def is_first_process() -> bool:
    """Return whether this process prints the outcome: a launcher, such as torchrun, may have started several."""
    from shoestring.training.session.launcher import is_first_process

    return is_first_process()


def config_file(path: str | Path) -> ConfigFile:
    """Return the content of a configuration file, `--config` of the command line.

    Raises UsageError with all problems of the file.
    """
    from shoestring.training.session.config_file import read_config

    return read_config(_path(path))


def process_started() -> float:
    """Return when this process started, as a value of `time.monotonic()`."""
    from shoestring.base.processes import started_at

    return started_at()


def evaluate(
    directory: str | Path,
    *,
    recipe: str | object | None = None,
    on: str = "local",
    limit_seconds: float | None = None,
    whole: bool = False,
    first: int | None = None,
    out: str | Path | None = None,
    **values: object,
) -> Evaluation:
    """Compute the metrics of saved weights, without an optimizer in memory.

    `directory` is a run (its best weights, else its last ones, else those of its newest checkpoint), its `best` or
    `light` folder, or one of its checkpoints. With `recipe` it may also be weights without a run; with a run, `recipe`
    is only needed if the run's own recipe is not found any more. `values`, such as `data`, replace the run's own
    options. With `whole`, all data are one part; with `first`, only so many first samples of each part count. The
    file `out` (.jsonl or .csv) gets a row for each sample. The run is not changed.

    Raises UsageError for invalid usage, CheckpointError for weights that are damaged or belong to another model.
    """
    with usable_libraries():
        from shoestring.runs.evaluate import evaluate

    _require_limits(limit_seconds=limit_seconds)
    return evaluate(
        _path(directory),
        values,
        recipe=recipe,
        on=on,
        limit_seconds=limit_seconds,
        whole=whole,
        first=first,
        out=_path(out) if out else None,
    )


def predict(
    directory: str | Path,
    *,
    recipe: str | object | None = None,
    on: str = "local",
    limit_seconds: float | None = None,
    out: str | Path | None = None,
    **values: object,
) -> Predictions:
    """Predict for the inputs in the option `data`, which need no targets, and write a row for each.

    `directory` and `recipe` are those of `evaluate`. `out` is a file (.jsonl or .csv), or a folder, which also gets the
    files of a recipe's predictions; by default JSON lines on standard output. A file or folder that is not complete is
    completed by the same call.

    Raises UsageError for invalid usage, CheckpointError for weights that are damaged or belong to another model. An
    input that cannot be used is a row with `error`.
    """
    with usable_libraries():
        from shoestring.runs.predict import predict

    _require_limits(limit_seconds=limit_seconds)
    return predict(
        _path(directory),
        values,
        recipe=recipe,
        on=on,
        limit_seconds=limit_seconds,
        out=_path(out) if out else None,
    )


def converse(
    directory: str | Path,
    *,
    input_stream: TextIO,
    output_stream: TextIO,
    recipe: str | object | None = None,
    on: str = "local",
    **values: object,
) -> bool:
    """Answer each line of `input_stream` on `output_stream`, knowing the earlier ones, until the end or `/exit`.

    Returns False, without having loaded the model, if the recipe has no part `converse`. The other arguments and the
    errors are those of `predict`.
    """
    with usable_libraries():
        from shoestring.runs.conversation import converse

    return converse(
        _path(directory), values, recipe=recipe, on=on, input_stream=input_stream, output_stream=output_stream
    )


def load(
    directory: str | Path, *, recipe: str | object | None = None, on: str = "local", **values: object
) -> LoadedModel:
    """Load a trained model: its `model` is the module, its `predict(inputs)` returns a row for each input.

    The arguments and the errors are those of `predict`.
    """
    with usable_libraries():
        from shoestring.runs.loaded import load

    return load(_path(directory), values, recipe=recipe, on=on)


def export(
    directory: str | Path,
    *,
    to: str,
    out: str | Path | None = None,
    overwrite: bool = False,
    recipe: str | object | None = None,
    **values: object,
) -> Export:
    """Write the model of a run or of a checkpoint to a folder that other libraries load, with a model card.

    `directory` is as in `evaluate`. Every recipe can be exported `to` safetensors, and to the formats that it
    defines: onnx, huggingface, adapter, merged, gguf. The folder is `export/FORMAT` in the run's directory, or
    `out`; with `overwrite` it replaces an older export. Outputs are compared with the model's on the recipe's data;
    `values`, such as `data`, replace the run's own options.

    Raises UsageError for invalid usage, RunError if the outputs differ from the model's or the disk has no space, and
    CheckpointError for weights that are damaged or belong to another model.
    """
    with usable_libraries():
        from shoestring.runs.export import export

    return export(_path(directory), values, to=to, out=_path(out) if out else None, overwrite=overwrite, recipe=recipe)


def replay(
    run: str | Path,
    update: int,
    *,
    recipe: str | object | None = None,
    on: str = "local",
    debug: bool = False,
    **values: object,
) -> Replay:
    """Make update number `update` (from 1) of a run again, to the bit, and return what it was made of and led to.

    It begins with the nearest checkpoint before the update, or with the seed; the run's directory is only read.
    `debug` stops in the debugger at the first line of the recipe's `loss`. `values`, such as `data`, replace the run's
    own options; `recipe` is only needed if the run's own recipe is not found any more.

    Raises UsageError for invalid usage, RunError if an update before it fails. A failure of the update itself is in the
    answer.
    """
    with usable_libraries():
        from shoestring.runs.replay import replay

    return replay(_path(run), update, values, recipe=recipe, on=on, debug=debug)


def notebook(
    recipe: str,
    on: str = "kaggle-t4x2",
    *,
    out: str | Path,
    user: str = "USER",
    internet: bool = True,
    allow_cpu: bool = False,
    **values: object,
) -> WrittenNotebook:
    """Write a notebook that trains a recipe on a machine of Kaggle or Colab, and the metadata to push it to Kaggle.

    The folder `out` gets `notebook.ipynb`, which carries Shoestring and the recipe's files, and `kernel-metadata.json`
    for the account `user`. Without `internet`, for sessions of Kaggle that have none, it also gets `wheels`, a dataset
    with the packages that Kaggle's image lacks. A session without a GPU trains only with `allow_cpu`. The notebook
    plans with the data that it finds: `rows`, `row_tokens` and `lengths`, which stand for them in plans elsewhere, may
    be given and are not written into it. An option that is a path may be in a dataset of Kaggle,
    `owner/dataset[:PATH]`, which is then attached.

    Raises UsageError for an unknown target, files that exist, a notebook that is too large for Kaggle, and wheels that
    cannot be downloaded.
    """
    from shoestring.recipe.finding import choose_for_run
    from shoestring.remote.notebook.writing import platform_of, write_notebook

    loaded, of_run = choose_for_run(recipe, values, allow_local=platform_of(on) != "kaggle")
    return write_notebook(loaded, of_run, on, _path(out), user, internet=internet, allow_cpu=allow_cpu)


def watch(run: str | Path, *, page: str | Path | None = None, every_seconds: float = 1.0) -> Iterator[View]:
    """Yield the present view of a run about every second, whether it has changed or not, until the run is finished.

    The run's directory is only read, so it may be one that trains, a copy, or read-only. `page` is an HTML file outside
    of it, which is written again whenever the run has changed, and which the browser loads again by itself.

    Raises UsageError if the directory holds no run, and no session that is about to begin.
    """
    from shoestring.answers.watch.following import follow

    return follow(_path(run), page=_path(page) if page else None, every_seconds=every_seconds)


def report(run: str | Path, *runs: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of a run, or a comparison of several, as a self-contained HTML page, and return its path.

    The page of one run is `report.html` in its directory, that of several `comparison.html` in the current directory,
    or `out`, which is outside of the runs' directories.

    Raises UsageError if a directory holds no run or is given twice, or if `out` exists and is not a page.
    """
    from shoestring.answers.compare.document import write as write_comparison
    from shoestring.answers.page.document import write

    file = _path(out) if out else None
    if not runs:
        return write(_path(run), file)
    return write_comparison([_path(run), *map(_path, runs)], file or Path("comparison.html"))


def _path(value: str | Path) -> Path:
    """Return the path. Raises UsageError if it has a NUL character, which no path can have."""
    if "\0" in str(value):
        raise UsageError(f"{str(value)!r} is not a path", hint="a path has no NUL character")
    return Path(value)


def _require_limits(**values: float | None) -> None:
    """Raise UsageError for a limit or a price that is negative, infinite or not a number."""
    problems = [f"{name} is {value}" for name, value in values.items() if value is not None and not 0 <= value <= 2**63]
    if problems:
        raise UsageError(
            "limits and prices are numbers from 0 to 2**63", problems=problems, hint="leave out what has no limit"
        )
