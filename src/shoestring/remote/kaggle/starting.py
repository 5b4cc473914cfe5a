"""The beginning and the continuation of a chain: what is checked, and what is sent."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shoestring.base import shell
from shoestring.base.config import option_text
from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.base.streams import write_messages
from shoestring.base.units import seconds_text
from shoestring.hardware.targets import find as find_target
from shoestring.hardware.targets import with_limits
from shoestring.planning.commands import plan_command
from shoestring.planning.plan import Plan
from shoestring.planning.planner import make_plan
from shoestring.recipe.absent_data import split_values
from shoestring.recipe.dataset_paths import DatasetPath
from shoestring.recipe.finding import VerifiedReference, as_finetune, choose_attached, file_of, is_hugging_face
from shoestring.recipe.options import LoadedRecipe, own_fields
from shoestring.remote.kaggle.attached import Attached, count_rows, list_files
from shoestring.remote.kaggle.chain import locked_chain, run_chain
from shoestring.remote.kaggle.chain_file import FOLDER, ChainState, read_chain
from shoestring.remote.kaggle.client import Client
from shoestring.remote.kaggle.fetching import require_not_further, require_usable
from shoestring.remote.kaggle.forecast import write_first_plan
from shoestring.remote.kaggle.job import Job
from shoestring.remote.kaggle.package import (
    TARGETS,
    dry_run,
    lacking_packages,
    make_job,
    new_chain,
    parse_data,
    training_data,
)
from shoestring.remote.kaggle.preflight import check_recipe, require_no_problems
from shoestring.remote.kaggle.quota import left_text, quota_error, session_seconds
from shoestring.remote.wheels import download_wheels, require_wheels
from shoestring.training.run_directory import trust

_QUICK_SECONDS = 10.0
"""How long the first calls are repeated, while someone waits for the answer."""
_LEAST_TIMEOUT_SECONDS = 10.0
"""For an answer: the client's process also has to start."""

_DEFAULT_ON = "kaggle-t4x2"
"""Which is therefore not known to have been chosen."""


@dataclass(frozen=True, kw_only=True)
class StartRequest:
    """What `shoestring kaggle start` was called with."""

    run: Path
    recipe: str | None
    values: Mapping[str, Any]
    on: str = _DEFAULT_ON
    datasets: tuple[str, ...] = ()
    """The values of `--data`."""
    limit_seconds: float | None = None
    every_seconds: float = 60.0
    internet: bool = True
    allow_cpu: bool = False
    user: str | None = None
    wait: bool = True
    absent: Mapping[str, Any] = field(default_factory=dict)
    """The `values` that stand in the plan for attached data. Sessions have the data, and the chain none of these."""


def preview(request: StartRequest, on_plan: Callable[[Plan], object]) -> dict[str, Any]:
    """Return what the first session would send, and the plan, without contacting anything.

    There is no plan if the chain exists, if only Kaggle can tell how many rows the data have, or without PyTorch.

    Raises UsageError with all problems that are known without Kaggle, and as `start` does if the plan does not fit.

    Keys:
        plan (object or null): the plan, as plan --json prints it; null if there is none
    """
    request = _with_absent_apart(_with_absolute_recipe(request))
    loaded, _ = _choose(request)
    _require_readable_lengths(request)
    state = read_chain(request.run / FOLDER)
    require_usable(request.run)
    require_no_problems(check_recipe(loaded, request.on, request.values, request.datasets, request.absent))
    plan = None
    # All else that is printed needs no PyTorch.
    if state is None and not _lacks_rows(request, loaded) and find_spec("torch"):
        plan = _fitting_plan(request, request.absent, write_messages)
        on_plan(plan)
    state = state or _new_state(request, request.user or "USER")
    return {**dry_run(state, make_job(loaded, state)), "plan": plan and plan.json()}


def start(
    request: StartRequest,
    on_event: Callable[[str], object],
    on_plan: Callable[[Plan], object],
    environment: Mapping[str, str] | None = None,
) -> ChainState:
    """Begin a chain or go on with the one of the run's directory, until it is finished, failed or stopped.

    Raises UsageError with all problems, KaggleError for what waiting does not cure.
    """
    request = _with_absent_apart(_with_absolute_recipe(request))
    every = request.every_seconds
    with Client(
        environment=environment,
        timeout_seconds=max(_LEAST_TIMEOUT_SECONDS, 2 * every),
        patience_seconds=_QUICK_SECONDS,
        pause_seconds=every / 30,
    ) as client:
        state = read_chain(request.run / FOLDER)
        if state is None:
            state, job = _begin(request, client, on_plan, on_event)
        else:
            job = _resume(request, state)
            if state.status != "finished":
                output = state.newest_output
                require_not_further(request.run, output.update or 0 if output else 0)
            client.account()
            if state.status in ("failed", "stopped"):
                state = _count_anew(request.run)
                on_event("goes on after the chain had ended")
        client.patience_seconds = 5 * every
        return run_chain(request.run, client, job, every, on_event, state=state)


def _with_absolute_recipe(request: StartRequest) -> StartRequest:
    """Name the recipe's file by its whole path, since the chain may be continued from another directory."""
    recipe = request.recipe
    path = file_of(recipe) if recipe is not None else None
    if recipe is None or path is None:
        return request
    name = str(path) + recipe[len(recipe.partition(":")[0]) :]
    if isinstance(recipe, VerifiedReference):
        name = VerifiedReference(name, recipe.contents)
    return dataclasses.replace(request, recipe=name)


def _with_absent_apart(request: StartRequest) -> StartRequest:
    """Move the options that only the plan has out of the values, which the sessions get."""
    if not split_values(request.values)[1]:
        return request
    recipe, _ = _choose(dataclasses.replace(request, values={}))
    values, absent = split_values(request.values, own_fields(recipe))
    return dataclasses.replace(request, values=values, absent=absent)


def _require_readable_lengths(request: StartRequest) -> None:
    """Raise UsageError if the options that only the plan has are not valid, or their file cannot be used."""
    if request.absent:
        _ = _choose(request, request.absent)[0].lengths


def _begin(
    request: StartRequest, client: Client, on_plan: Callable[[Plan], object], on_event: Callable[[str], object]
) -> tuple[ChainState, Job]:
    require_usable(request.run)
    loaded, _ = _choose(request)
    _require_readable_lengths(request)
    problems = check_recipe(loaded, request.on, request.values, request.datasets, request.absent)
    require_no_problems([problem for problem in problems if problem.startswith("--on ")])
    user = client.account()
    quota = client.quota()  # a key that was revoked is noticed by a call that needs it
    without_rows = loaded.in_datasets["data"] if _lacks_rows(request, loaded) else None
    attached = [
        list_files(client, path, argument, for_rows=path == without_rows and loaded.parts.data.count_rows is not None)
        for argument, path in _attached_paths(request, loaded).items()
    ]
    require_no_problems(problems + [problem for dataset in attached for problem in dataset.problems()])
    limit = request.limit_seconds or longest_session_seconds(request.on)
    if not request.wait and session_seconds(quota, limit) is None:
        raise quota_error(left_text(quota), quota["refresh"])
    rows = _count_rows(loaded, attached, without_rows, on_event)
    plan = _fitting_plan(request, {**request.absent, **rows}, on_event)
    on_plan(plan)
    _download_wheels(request, loaded, on_event)
    state = _new_state(request, request.user or user)
    job = make_job(loaded, state, wait=request.wait)
    if loaded.source is not None:
        trust.remember(loaded.source)
    with locked_chain(request.run) as folder:
        write_first_plan(folder, plan.json())
    return state, job


def _count_rows(
    loaded: LoadedRecipe,
    attached: Iterable[Attached],
    without_rows: DatasetPath | None,
    on_event: Callable[[str], object],
) -> dict[str, int]:
    """Return the option `rows` of the data whose rows the command does not tell; none if there are no such data."""
    rows: dict[str, int] = {}
    for dataset in attached:
        name = dataset.source.dataset
        if dataset.source == without_rows:
            rows["rows"] = count_rows(loaded, dataset)
            on_event(f"{name} has {rows['rows']:,} rows by its files ({loaded.parts.data.row} each)")
        elif dataset.error:
            on_event(f"nobody has checked that the data are in {name}: its files are not listed ({dataset.error})")
    return rows


def _lacks_rows(request: StartRequest, loaded: LoadedRecipe) -> bool:
    """Return whether the run has attached training data, and the command does not tell how many rows they have."""
    absent = _choose(request, request.absent)[0].absent_data if request.absent else None
    return "data" in loaded.in_datasets and (absent is None or (absent.rows is None and absent.lengths is None))


def _attached_paths(request: StartRequest, loaded: LoadedRecipe) -> dict[str, DatasetPath]:
    """Return the paths in datasets that the sessions get, by the argument of the command that names each."""
    paths = {f"--data {path}": path for path in parse_data(request.datasets)}
    of_options = {f"{name}={path}": path for name, path in loaded.in_datasets.items()}
    return paths | {argument: path for argument, path in of_options.items() if path not in paths.values()}


def _download_wheels(request: StartRequest, loaded: LoadedRecipe, on_event: Callable[[str], object]) -> None:
    """Download what Kaggle's image lacks. Raises UsageError for what is missing if the sessions have no internet."""
    answer = lacking_packages(loaded, request.on)
    if answer.lacks:
        on_event(f"{answer.image.title} lacks {', '.join(package.pin for package in answer.lacks)}: sent as wheels")
    problems = download_wheels(answer)
    if not request.internet:
        require_wheels(answer, problems)
    for problem in problems:
        on_event(f"{problem}; sessions need internet for it")


def _fitting_plan(request: StartRequest, absent: Mapping[str, Any], on_event: Callable[[str], object]) -> Plan:
    """Return the plan, in which `absent` stands for the data.

    Raises UsageError if it does not fit, unless only the sessions are short: that may be a test.
    """
    loaded, settings = _choose(request, absent)
    target = with_limits(find_target(request.on), session_seconds=request.limit_seconds)
    plan = make_plan(loaded, target, settings)
    broken = [limit.name for limit in plan.limits if not limit.holds]
    if broken == ["session"] and request.limit_seconds is not None:
        on_event(
            f"--limit {seconds_text(request.limit_seconds)} may be too short ({'; '.join(plan.changes)}); "
            "the plan below is for the longest session that Kaggle allows"
        )
        plan = make_plan(loaded, find_target(request.on), settings)
    if not plan.fits:
        raise UsageError(
            f"{plan.recipe} does not fit on {request.on}",
            problems=list(plan.changes),
            hint=f"see {plan_command(loaded, settings, target, {})}",
        )
    return plan


def _resume(request: StartRequest, state: ChainState) -> Job:
    """Return the job of a chain that exists. Raises UsageError if the command contradicts it."""
    problems = []
    if request.recipe is not None and request.recipe != state.recipe:
        problems.append(f"RECIPE: the chain trains {state.recipe}, not {request.recipe}")
    requested = {key: option_text(value) for key, value in request.values.items()}
    problems += [
        f"{key}={value}: the chain was started with {state.set.get(key, 'its default')}"
        for key, value in requested.items()
        if state.set.get(key) != value
    ]
    if request.limit_seconds is not None and request.limit_seconds != state.limit_seconds:
        problems.append(f"--limit: the chain was started with {seconds_text(state.limit_seconds)}")
    if request.datasets and list(request.datasets) != state.data:
        problems.append(f"--data: the chain was started with {', '.join(state.data) or 'none'}")
    if request.on not in (state.on, _DEFAULT_ON):
        problems.append(f"--on {request.on}: the chain was started with {state.on}")
    if state.internet and not request.internet:
        problems.append("--no-internet: the chain was started with internet")
    if request.allow_cpu and not state.allow_cpu:
        problems.append("--allow-cpu: the chain was started without it")
    if request.user not in (None, state.user):
        problems.append(f"--user {request.user}: the chain belongs to {state.user}")
    if problems:
        raise UsageError(
            f"{request.run} has a chain of another run",
            problems=problems,
            hint=f"leave them out to go on: shoestring kaggle start --run {shell.quote(request.run)}; "
            "or choose another --run",
        )
    if request.absent:
        _choose(request, request.absent)  # they are not used any more, but an invalid one is an error
    return make_job(_choose(request)[0], state, wait=request.wait)


def _count_anew(run: Path) -> ChainState:
    """Let a chain that has ended go on: sessions without progress are counted from now on."""
    with locked_chain(run) as folder:
        state = read_chain(folder)
        assert state is not None
        for session in state.sessions:
            session.is_counted = False
        state.status, state.reason = "preparing", ""
        state.write(folder)
        return state


def _choose(request: StartRequest, absent: Mapping[str, Any] = MappingProxyType({})) -> tuple[LoadedRecipe, Settings]:
    """Return the recipe and the settings of the command, or of the chain if it names no recipe.

    Options in `absent` stand for the data. Without them the data are those of the recipe's options.
    """
    recipe, values, state = request.recipe, request.values, read_chain(request.run / FOLDER)
    if recipe is None:
        if state is None:
            raise UsageError(
                f"{request.run} has no chain on Kaggle, so the command has to name the recipe",
                hint=f"shoestring kaggle start RECIPE --run {shell.quote(request.run)}",
            )
        recipe, values = _trusted(request.run, state.recipe), state.set
    data = training_data(parse_data(request.datasets or (state.data if state else ())))
    in_datasets = {"data": data} if data is not None and "data" not in values else {}
    has_data = bool(in_datasets) or values.get("data") is not None
    if absent:
        in_datasets |= _choose(request)[0].in_datasets
        values = {name: value for name, value in values.items() if name not in {"data", *in_datasets}} | dict(absent)
    if has_data and is_hugging_face(recipe):  # as the sessions do, whose data is at a path
        recipe, values = as_finetune(recipe, values)
    return choose_attached(recipe, values, in_datasets, allow_local=bool(absent))


def _trusted(run: Path, recipe: str) -> str:
    """Return the reference to the recipe of a chain. Raises UsageError if it executes a file that is not trusted."""
    path = file_of(recipe)
    if path is None:
        return recipe
    return VerifiedReference(recipe, trust.verified_contents(path, str(run / FOLDER / "chain.json")))


def _new_state(request: StartRequest, user: str) -> ChainState:
    assert request.recipe is not None
    return new_chain(
        request.run,
        user=user,
        recipe=request.recipe,
        on=request.on,
        limit_seconds=request.limit_seconds or longest_session_seconds(request.on),
        internet=request.internet,
        allow_cpu=request.allow_cpu,
        values=request.values,
        data=request.datasets,
    )


def longest_session_seconds(on: str) -> float:
    """Return the platform's limit of a session, less a minute, so that Kaggle is never the one that ends it."""
    if on not in TARGETS:
        raise UsageError(f"--on {on}: not a machine of Kaggle with a GPU", hint=f"available: {', '.join(TARGETS)}")
    platform = find_target(on).platform
    assert platform is not None and platform.session_hours is not None
    return platform.session_hours * 3600 - 60
