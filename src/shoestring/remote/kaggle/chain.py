"""Session after session on Kaggle until a run is finished: a state machine that survives being killed.

The state is in `chain.json` before and after each step, and every step can be repeated: what Kaggle says decides what
has happened. A session is recognized by the nonce in the source of its kernel, so a push that landed unseen is adopted.
A new session is only pushed when the one before is over, to the slug that does not hold the newest output.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shoestring.base import shell
from shoestring.base.errors import UsageError
from shoestring.base.reading import read_bytes
from shoestring.remote.kaggle.active_chain import STOP_FILE, ActiveChain
from shoestring.remote.kaggle.chain_file import FINAL, FOLDER, ChainState, SessionRecord, read_chain
from shoestring.remote.kaggle.client import Client, KaggleError
from shoestring.remote.kaggle.fetching import fetch_output
from shoestring.remote.kaggle.job import Job
from shoestring.remote.kaggle.kernel.program.places import LOG_FILE
from shoestring.remote.kaggle.polling import LOOK, poll
from shoestring.remote.kaggle.pushing import next_limit, push
from shoestring.remote.kaggle.upload import upload_package
from shoestring.training.run_directory import own_files
from shoestring.training.run_directory.lock import locked

_MOST_FAILURES = {"temporary": 100, "account": 3}
"""Steps in a row that may fail, by the kind of error: nothing answers for hours, in which a session on Kaggle goes on;
a token expires again and again."""
_LOG_LINES = 15
_LOG_BYTES = 4 << 20


@contextmanager
def locked_chain(run: Path) -> Iterator[Path]:
    """Lock the chain of a run's directory for this process, and return the chain's folder.

    Raises UsageError naming the holder if another process goes on with it.
    """
    folder = run / FOLDER
    own_files.refuse_links(run)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        yield folder


def run_chain(
    run: Path,
    client: Client,
    job: Job,
    every_seconds: float = 60.0,
    on_event: Callable[[str], object] = lambda _: None,
    *,
    state: ChainState | None = None,
) -> ChainState:
    """Go on with the chain in the directory `run` until it is finished, failed or stopped, and return its state.

    `state` begins a chain where there is none. `on_event` is called with a sentence for everything that happens.

    Raises UsageError if there is no chain or another process goes on with it, and KaggleError for what waiting does not
    cure; the chain can be continued after that.
    """
    with locked_chain(run) as folder:
        current = read_chain(folder) or state
        if current is None:
            raise UsageError(
                f"{run} has no chain on Kaggle", hint=f"shoestring kaggle start RECIPE --run {shell.quote(run)}"
            )
        (folder / STOP_FILE).unlink(missing_ok=True)
        chain = ActiveChain(
            run=run,
            folder=folder,
            client=client,
            job=job,
            every_seconds=every_seconds,
            on_event=on_event,
            state=current,
        )
        chain.write()
        _repeat_steps(chain)
        return chain.state


def _repeat_steps(chain: ActiveChain) -> None:
    """Take steps until the chain has ended. A failure that may pass is waited for."""
    failures: Counter[str] = Counter()
    while chain.state.status not in FINAL:
        try:
            _step(chain)
            failures.clear()
        except KaggleError as error:
            failures[error.kind] += 1
            if failures[error.kind] > _MOST_FAILURES.get(error.kind, 0):
                raise
            chain.event(f"no useful answer from Kaggle; asks again: {error.message}")
            chain.sleep(LOOK)


def _step(chain: ActiveChain) -> None:
    session = chain.state.newest
    if chain.is_stopped():
        chain.set("stopped", "stopped by a command")
    elif session and session.status == "pushing":
        push(chain, session)
    elif session and session.status == "running":
        poll(chain, session)
    else:
        _continue(chain, session)


def _continue(chain: ActiveChain, session: SessionRecord | None) -> None:
    """After the end of a session, fetch the run if it is finished, give up, or begin the next session."""
    if session and session.outcome == "finished":
        _fetch(chain, session)
        return
    last_two = [item for item in chain.state.sessions if item.is_counted][-2:]
    if len(last_two) == 2 and not any(item.has_progress for item in last_two):
        before, last = last_two
        first_line = before.reason.partition("\n")[0]
        lines = [
            "two sessions in a row made no progress",
            f"session {before.number}: {first_line}",
            f"session {last.number}: {last.reason}",
        ]
        chain.set("failed", "\n".join([*lines, *_log_tail(chain)]))
        return
    if chain.job.package:
        upload_package(chain.client, chain.state, chain.job, chain.folder, chain.every_seconds, chain.event)
    output = chain.state.newest_output
    slugs = [f"{chain.state.base}-a", f"{chain.state.base}-b"]
    number = len(chain.state.sessions) + 1
    chain.state.sessions.append(
        SessionRecord(
            number=number,
            nonce=secrets.token_hex(16),
            slug=next(slug for slug in slugs if output is None or slug != output.slug),
            limit_seconds=next_limit(chain),
            previous={"kernel": chain.state.kernel(output), "nonce": output.nonce} if output else None,
        )
    )
    chain.set("pushing", f"session {number}")


def _fetch(chain: ActiveChain, session: SessionRecord) -> None:
    """Put the finished run into the directory."""
    chain.set("fetching", f"the run of session {session.number}")
    chain.event("the run is finished; fetching it")
    fetch_output(chain.run, chain.client, chain.state, session, chain.event)
    chain.set("finished", session.reason)
    chain.event(f"the run is in {chain.run}")


def _log_tail(chain: ActiveChain) -> list[str]:
    """Return the last lines of the newest session's log: the file that it left, else what Kaggle has."""
    session = chain.state.newest
    with suppress(OSError, ValueError):
        return _tail(read_bytes(chain.folder / LOG_FILE, follow=False, max_bytes=_LOG_BYTES).decode("utf-8", "replace"))
    with suppress(KaggleError):
        return _tail(chain.client.log_text(chain.state.kernel(session))) if session else []
    return []


def _tail(text: str) -> list[str]:
    return [f"log: {line}" for line in text.splitlines()[-_LOG_LINES:]]
