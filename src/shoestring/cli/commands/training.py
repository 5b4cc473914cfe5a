"""Training, in a child process of the command."""

import importlib
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from shoestring import api
from shoestring.base import streams
from shoestring.base.units import parse_bytes, parse_seconds
from shoestring.cli.config import Config
from shoestring.cli.options import (
    AllowCpu,
    Json,
    On,
    Probe,
    Recipe,
    RunDir,
    Set,
    option_values,
    parse,
)
from shoestring.cli.output import print_answer, status_of


def train(
    recipe: Recipe,
    run: RunDir,
    on: On = "local",
    limit: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Save and end this session within this time, e.g. 90s, 20m or 1.5h."),
    ] = None,
    disk: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="The disk space for the run's directory, such as 15GB; by default the target's."
        ),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Cross-validate: train N models, each on all folds of the training data but one, in DIR/fold-1 and so "
            "on, and predict each sample by the model that was not trained on it.",
        ),
    ] = None,
    set_: Set = None,
    config_file: Config = None,
    allow_inexact: Annotated[
        bool,
        typer.Option("--allow-inexact", help="Continue with other versions, hardware or settings, not bit for bit."),
    ] = False,
    allow_cpu: AllowCpu = False,
    log: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Write DIR/logs/NAME while it trains: tensorboard or csv. May be given several times."
        ),
    ] = None,
    backup: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Copy each checkpoint there in the background: a folder, s3://, hf://, kaggle:// or a URL of fsspec.",
        ),
    ] = None,
    from_url: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="URL",
            help="If DIR has no run, begin from the newest copy of a --backup. If there is none, and URL is that of "
            "--backup, a new run begins.",
        ),
    ] = None,
    probe: Probe = None,
    as_json: Json = False,
) -> None:
    """Train until the run is finished or the session is over; repeat the command to continue.

    A run without a plan is planned first. Ctrl-C saves and stops.
    """
    session: dict[str, Any] = {
        "run": run,
        "on": on,
        "limit_seconds": parse("--limit", limit, parse_seconds),
        "allow_cpu": allow_cpu,
    }
    arguments = {
        "disk_bytes": parse("--disk", disk, parse_bytes),
        "allow_inexact": allow_inexact,
        "log": log or (),
        "backup": backup,
        "from_url": from_url,
        "probe": probe,
        **option_values(api.train, set_, config_file),
    }
    if folds is not None:
        _cross_validate(recipe, folds, session | arguments, as_json)
        return
    if _is_own_process():
        # The supervisor prints an outcome if it has to end the session, and has no time for imports then.
        importlib.import_module("shoestring.answers.outcome")
        importlib.import_module("shoestring.answers.renderers.terminal.document")
        session["started"] = api.process_started()  # the limit of a session includes the time of the imports

        def work() -> None:
            _print_outcome(api.train(recipe, **session, **arguments), recipe, run, as_json)

        if config_file:
            work = config_file.naming_in_errors(set_ or ())(work)
        outcome = api.train_supervised(lambda: status_of(work), recipe, **session)
    else:
        outcome = api.train(recipe, **session, **arguments)
    _print_outcome(outcome, recipe, run, as_json)


def _cross_validate(recipe: str, folds: int, arguments: dict[str, Any], as_json: bool) -> None:
    def status(work: Callable[[], object]) -> int:
        def command() -> None:
            work()

        return status_of(command)

    if _is_own_process():
        arguments |= {"in_child": status, "started": api.process_started()}
    outcome = api.cross_validate(recipe, folds=folds, **arguments)
    from shoestring.answers.cross_validation import document

    print_answer(asdict(outcome), as_json, lambda: document(outcome))


def _is_own_process() -> bool:
    """Return whether this process is there for the command alone, so that it can become a supervisor."""
    return "torch" not in sys.modules


def _print_outcome(outcome: Any, recipe: str, run: Path, as_json: bool) -> None:
    if not api.is_first_process():
        return
    from shoestring.answers.outcome import document

    print_answer(asdict(outcome), as_json, lambda: document(outcome, recipe, run))
    if error := streams.lost_output():  # the session is not a failure
        streams.write_messages(
            f"standard output could not be written ({error}); the outcome is in {run / 'state.json'}"
        )
