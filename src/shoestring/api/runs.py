"""Looking at a run: its present state, its report, one of its updates, what it needed beside what was predicted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from shoestring.api.arguments import checked_path
from shoestring.base.errors import UsageError
from shoestring.base.packages.broken import explained_imports, usable_libraries

if TYPE_CHECKING:
    from shoestring.answers.watch.view import View
    from shoestring.runs.measurement.measurement import Measurement
    from shoestring.runs.replay.replayed import Replay


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
        from shoestring.runs.replay.replay import open_replayable, replay

    return replay(open_replayable(checked_path(run), update, values, recipe=recipe, on=on), update, debug=debug)


def watch(run: str | Path, *, page: str | Path | None = None, every_seconds: float = 1.0) -> Iterator[View]:
    """Yield the present view of a run about every second, whether it has changed or not, until the run is finished.

    The run's directory is only read, so it may be one that trains, a copy, or read-only. `page` is an HTML file outside
    of it, which is written again whenever the run has changed, and which the browser loads again by itself.

    Raises UsageError if the directory holds no run, and no session that is about to begin.
    """
    from shoestring.answers.watch.following import follow

    return follow(checked_path(run), page=checked_path(page) if page else None, every_seconds=every_seconds)


@explained_imports()
def measured(
    run: str | Path | None = None, *, out: str | Path | None = None, check: str | Path | None = None
) -> Measurement:
    """Return what a run was predicted to need beside what it needed, as JSON that names no path, data or host.

    `out` is a new file to write it to. With `check`, a file of somebody is read instead, and compared with the run in
    the directory `run` if that is given.

    Raises UsageError for a run without a prediction or with too few updates, and for a file that is damaged, was
    changed, or has values that no device can have.
    """
    from shoestring.runs.measurement import file
    from shoestring.runs.measurement.measurement import Measurement
    from shoestring.runs.measurement.of_run import measurement_of

    if check is not None:
        checked = checked_path(check)
        if out is not None:
            raise UsageError("out and check cannot be used together", hint="a file that is checked exists already")
        content = file.require_of_run(checked, checked_path(run)) if run is not None else file.read(checked)
        return Measurement(content=content, checked=str(checked))
    if run is None:
        raise UsageError("neither a run nor a file was given", hint="name a run's directory, or check=FILE")
    content = measurement_of(checked_path(run))
    if out is None:
        return Measurement(content=content)
    file.write(checked_path(out), content)
    return Measurement(content=content, out=str(out))


def report(run: str | Path, *runs: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of a run, or a comparison of several, as a self-contained HTML page, and return its path.

    Of the folder of a cross-validation, the page compares the folds, with the mean and the spread of their metrics. The
    page of one run is `report.html` in its directory, that of several `comparison.html` in the current directory,
    or `out`, which is outside of the runs' directories.

    Raises UsageError if a directory holds no run or is given twice, or if `out` exists and is not a page.
    """
    from shoestring.answers.compare.document import write as write_comparison
    from shoestring.answers.compare.folds import write as write_folds
    from shoestring.answers.report.document import write
    from shoestring.training.run_directory.fold_runs import runs_in

    file = checked_path(out) if out else None
    if not runs and (folds := runs_in(checked_path(run))):
        return write_folds(checked_path(run), [fold.path for fold in folds], file)
    if not runs:
        return write(checked_path(run), file)
    return write_comparison([checked_path(run), *map(checked_path, runs)], file or Path("comparison.html"))
