"""What is known about a chain: its state, the log of its session as it comes, and its end by deleting kernels."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from shoestring.base import shell
from shoestring.base.errors import UsageError
from shoestring.remote.kaggle.active_chain import STOP_FILE
from shoestring.remote.kaggle.chain import locked_chain
from shoestring.remote.kaggle.chain_file import FINAL, FOLDER, ChainState, read_chain
from shoestring.remote.kaggle.client import Client, KaggleError
from shoestring.remote.kaggle.fetching import fetch_output, require_not_further
from shoestring.remote.kaggle.forecast import forecast

_STOP_SECONDS = 30.0
"""How long `stop` waits for the process that goes on with the chain to see the stop file, besides its interval."""


def require_chain(run: Path) -> ChainState:
    """Return the chain of a run's directory. Raises UsageError if it has none."""
    state = read_chain(run / FOLDER)
    if state is None:
        raise UsageError(
            f"{run} has no chain on Kaggle", hint=f"shoestring kaggle start RECIPE --run {shell.quote(run)}"
        )
    return state


def describe(
    state: ChainState, run: Path, *, answer: Mapping[str, str] | None = None, note: str = ""
) -> dict[str, Any]:
    """Return the chain of a run's directory as JSON; `answer` is what Kaggle says about its newest session.

    Keys:
        kernels (list of texts): the full names of the kernels on Kaggle
        update (integer): the updates of the newest output that the chain continues from; 0 if there is none
        total_updates (integer or null): the updates of the whole run
        forecast (object or null): the plan that the chain began with, and the rest of the run as it was made again from
            what the sessions have measured; null if neither is there
        kaggle (object or null): what Kaggle says about a session that runs
        note (text): why Kaggle could not be asked, if it could not
    """
    output, remaining = state.newest_output, forecast(state, run / FOLDER)
    updates = [session for session in state.sessions if session.update is not None]
    return {
        **dataclasses.asdict(state),
        "package": state.package,
        "kernels": sorted({state.kernel(session) for session in state.sessions}),
        "update": output.update if output else 0,
        "total_updates": updates[-1].total_updates if updates else None,
        "forecast": remaining.json() if remaining else None,
        "kaggle": dict(answer) if answer else None,
        "note": note,
    }


def status(run: Path, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the chain of a run's directory, and what Kaggle says about a session that runs. Nothing is written."""
    state = require_chain(run)
    session = state.newest
    if session is None or session.is_over or state.status in FINAL:
        return describe(state, run)
    try:
        with Client(environment=environment, patience_seconds=5.0) as client:
            return describe(state, run, answer=client.status(state.kernel(session)))
    except (UsageError, KaggleError) as error:
        return describe(state, run, note=f"Kaggle could not be asked: {error.message}")


def watch(run: Path, every_seconds: float, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield what happens to a chain and the log of its session as it comes, until the chain has ended.

    Nothing is written.
    """
    state, printed, printed_forecast, lines = require_chain(run), "", "", 0
    number = 0
    with Client(environment=environment, patience_seconds=5 * every_seconds) as client:
        while True:
            text = f"{state.status}: {state.reason}" + (f"; until {state.waiting_until}" if state.waiting_until else "")
            if text != printed:
                printed = text
                yield text
                remaining = forecast(state, run / FOLDER)
                if remaining and remaining.text != printed_forecast:
                    printed_forecast = remaining.text
                    yield from remaining.text.splitlines()
            if state.status in FINAL:
                return
            session = state.newest
            if session and session.status == "running":
                if session.number != number:
                    number, lines = session.number, 0
                # The stream begins with the first line whenever it is opened.
                for index, line in enumerate(client.log(state.kernel(session), seconds=max(5.0, every_seconds))):
                    if index >= lines:
                        lines = index + 1
                        yield line.rstrip("\n")
            time.sleep(every_seconds)
            state = require_chain(run)


def fetch(run: Path, environment: Mapping[str, str] | None = None) -> ChainState:
    """Put the newest output into the run's directory, so that the run can be continued anywhere.

    Raises UsageError if there is no output yet, or while another process goes on with the chain.
    """
    state = require_chain(run)
    output = state.newest_output
    if output is None:
        raise UsageError(
            f"no session of {run} has left a checkpoint yet", hint=f"shoestring kaggle status --run {shell.quote(run)}"
        )
    require_not_further(run, output.update or 0)
    with locked_chain(run), Client(environment=environment) as client:
        fetch_output(run, client, state, output)
    return state


def loss(state: ChainState) -> str:
    """Return what is lost when the running session of a chain is deleted."""
    output = state.newest_output
    if not _running(state):
        return "no session runs, so nothing is lost"
    if output is None:
        return "everything that the running session has done is lost; no session has left a checkpoint yet"
    return (
        f"everything after update {output.update}, which session {output.number} has left, is lost; that output remains"
    )


def stop(
    run: Path,
    confirm: Callable[[list[str], ChainState], bool],
    every_seconds: float = 60.0,
    environment: Mapping[str, str] | None = None,
) -> tuple[ChainState, list[str]]:
    """Delete the kernels of a chain that may run, after `confirm` has been asked with their names.

    Returns the state and the names of the deleted kernels. Raises UsageError if a process that goes on with the chain
    does not end. A chain that has ended is left as it is, and nobody is asked.
    """
    state = require_chain(run)
    kernels = _running(state)
    if state.status in FINAL and not kernels:
        return state, []
    if not confirm(kernels, state):
        return state, []
    folder = run / FOLDER
    (folder / STOP_FILE).touch()
    give_up_at = time.monotonic() + _STOP_SECONDS + 2 * every_seconds
    while True:
        try:
            with locked_chain(run):
                return _delete(folder, environment)
        except UsageError:
            if time.monotonic() > give_up_at:
                raise
        time.sleep(0.2)


def _running(state: ChainState) -> list[str]:
    """Return the kernels whose session may run: a push that was tried may have landed."""
    return [
        state.kernel(session) for session in state.sessions if not session.is_over and session.pushed_at is not None
    ]


def _delete(folder: Path, environment: Mapping[str, str] | None) -> tuple[ChainState, list[str]]:
    state = read_chain(folder)
    assert state is not None
    deleted = []
    with Client(environment=environment, patience_seconds=60.0) as client:
        for session in state.sessions:
            if session.is_over:
                continue
            if session.pushed_at is not None and client.delete_kernel(state.kernel(session)):
                deleted.append(state.kernel(session))
            session.status, session.reason, session.is_counted = "lost", "stopped: its kernel was deleted", False
            session.ended_at = time.time()
    if state.status != "finished":
        state.status, state.reason = "stopped", "stopped by a command"
    state.write(folder)
    (folder / STOP_FILE).unlink(missing_ok=True)
    return state, deleted
