"""The verbs of `shoestring kaggle` as functions: each command parses its options and calls the function of its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoestring.planning.plan import Plan


def start(
    recipe: str | None = None,
    *,
    run: str | Path,
    on: str = "kaggle-t4x2",
    datasets: Sequence[str] = (),
    limit_seconds: float | None = None,
    every_seconds: float = 60.0,
    internet: bool = True,
    allow_cpu: bool = False,
    user: str | None = None,
    wait: bool = True,
    on_event: Callable[[str], object] = lambda _: None,
    on_plan: Callable[[Plan], object] = lambda _: None,
    **values: object,
) -> dict[str, Any]:
    """Train on Kaggle, session after session, until the run is finished and in the directory `run`; call it again to
    go on.

    An option of the recipe that is a path may be in a dataset, `table="owner/slug:PATH"`, which is attached. `datasets`
    are attached too; the one with a path, or the only one, becomes the option `data` if that is not set. The plan of a
    new run is for these data: with as many rows as the list of its files has, or as `rows`, `row_tokens` and
    `lengths` in `values` say, which only the plan has.
    `limit_seconds` of a session replaces the platform's limit. Kaggle is asked every `every_seconds`. Returns the chain
    as `status` does. A session that Kaggle gives no GPU ends at once, unless `allow_cpu`. `on_event` gets a sentence
    for everything that happens, `on_plan` the plan of a new run.

    Raises UsageError with all problems, RunError for what waiting does not cure.
    """
    from shoestring.remote.kaggle import following, starting

    request = _request(locals())
    state = starting.start(request, on_event, on_plan)
    if state.status == "finished" and not (request.run / "report.html").exists():
        from shoestring.answers.report.document import write

        write(request.run, None)
    return following.describe(state, request.run)


def preview(
    recipe: str | None = None,
    *,
    run: str | Path,
    on: str = "kaggle-t4x2",
    datasets: Sequence[str] = (),
    limit_seconds: float | None = None,
    internet: bool = True,
    allow_cpu: bool = False,
    user: str | None = None,
    on_plan: Callable[[Plan], object] = lambda _: None,
    **values: object,
) -> dict[str, Any]:
    """Return all that the first session of `start` would send: `requests`, `files`, `total_bytes`, the `script`; and
    the `plan`, which `on_plan` gets too.

    Nothing is contacted and nothing written; neither an account nor Kaggle's client is needed. There is no plan if only
    Kaggle can tell how many rows the attached data have.

    Raises UsageError with all problems.
    """
    from shoestring.remote.kaggle import starting

    return starting.preview(_request(locals()), on_plan)


def status(run: str | Path) -> dict[str, Any]:
    """Return the chain of a run's directory, and what Kaggle says about its session. Nothing is written.

    Raises UsageError if the directory has no chain.
    """
    from shoestring.remote.kaggle import following

    return following.status(Path(run))


def watch(run: str | Path, *, every_seconds: float = 60.0) -> Iterator[str]:
    """Yield what happens to a chain and the log of its session as it comes, until the chain has ended.

    Nothing is written. Raises UsageError if the directory has no chain.
    """
    from shoestring.remote.kaggle import following

    return following.watch(Path(run), every_seconds)


def fetch(run: str | Path) -> dict[str, Any]:
    """Put the newest output of the chain into the run's directory, from where the run can be continued anywhere.

    Raises UsageError if there is none yet, or while `start` goes on with the chain.
    """
    from shoestring.remote.kaggle import following

    return following.describe(following.fetch(Path(run)), Path(run))


def stop(
    run: str | Path, *, confirm: Callable[[list[str], str], bool] = lambda *_: True, every_seconds: float = 60.0
) -> dict[str, Any]:
    """Delete the kernels of a chain that may run, which is the only thing that ends the use of the quota.

    `confirm` is called with their names and with what is lost. Returns the chain with the `deleted` kernels.

    Raises UsageError if the directory has no chain.

    Keys:
        deleted (list of texts): the full names of the kernels that were deleted
    """
    from shoestring.remote.kaggle import following

    state, deleted = following.stop(
        Path(run), lambda kernels, chain: confirm(kernels, following.loss(chain)), every_seconds
    )
    return {**following.describe(state, Path(run)), "deleted": deleted}


def _request(arguments: dict[str, Any]) -> Any:
    from shoestring.hardware.targets import refusal
    from shoestring.remote.kaggle.starting import StartRequest

    error = refusal(arguments["on"])
    if error:
        raise error
    names = ("recipe", "on", "limit_seconds", "internet", "allow_cpu", "user", "every_seconds", "wait", "values")
    options = {name: arguments[name] for name in names if name in arguments}
    return StartRequest(run=Path(arguments["run"]), datasets=tuple(arguments["datasets"]), **options)
