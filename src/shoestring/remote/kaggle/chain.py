"""Session after session on Kaggle until a run is finished: a state machine that survives being killed.

The state is in `chain.json` before and after each step, and every step can be repeated: what Kaggle says decides what
has happened. A session is recognized by the nonce in the source of its kernel, so a push that landed unseen is adopted.
A new session is only pushed when the one before is over, to the slug that does not hold the newest output.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from shoestring.base.errors import RunError, UsageError
from shoestring.base.reading import read_bytes
from shoestring.base.units import seconds_text
from shoestring.recipe.finding import file_of
from shoestring.remote.kaggle import fetching
from shoestring.remote.kaggle.chain_file import FINAL, FOLDER, ChainState, SessionRecord, read_chain
from shoestring.remote.kaggle.client import Client, KaggleError
from shoestring.remote.kaggle.forecast import forecast
from shoestring.remote.kaggle.job import Job, write_kernel
from shoestring.remote.kaggle.kernel.session_file import SessionFile, read_session_file
from shoestring.remote.kaggle.quota import left_text, quota_error, session_seconds
from shoestring.remote.kaggle.upload import upload_package
from shoestring.training.run_directory import own_files
from shoestring.training.run_directory.lock import locked
from shoestring.training.run_directory.stored import StoredPlan

STOP_FILE = "stop"
"""In `DIR/kaggle`: the process that goes on with the chain ends when it sees it."""

_GRACE, _RECONCILE, _FORBIDDEN, _LOOK, _KILLED, _UNREADABLE = 10, 5, 10, 5, 3, 60
"""Numbers of polls: for what Kaggle shows late; for a push that may have landed; for a refusal that passes; between two
looks at the output of a session that runs; until one that is shown as over was killed; until its output is given up
although Kaggle never showed what is in it."""
_REPORT = 30
"""Polls between two lines about a session that runs."""
_MOST_FAILURES = {"temporary": 100, "account": 3}
"""Steps in a row that may fail, by the kind of error: nothing answers for hours, in which a session on Kaggle goes on;
a token expires again and again."""
_AFTER_LOSS = 0.7
"""The part of the time that a session lived, before it was killed, that the next one is given."""
_LEAST_LIMIT = 0.25
"""The part of the chain's limit that every session is given."""
_CHANGED = (
    "\nthe sessions before accepted the same command, so something has changed on Kaggle since then: restore it, for "
    "example by a new version of the dataset with its earlier files, or start another run: --run runs/NAME"
)
_RUNS = ("queued", "running", "new_script", "cancel_requested")
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
            raise UsageError(f"{run} has no chain on Kaggle", hint=f"shoestring kaggle start RECIPE --run {run}")
        (folder / STOP_FILE).unlink(missing_ok=True)
        return _Chain(run, folder, client, job, every_seconds, on_event, current).run()


class _Chain:
    def __init__(
        self,
        run: Path,
        folder: Path,
        client: Client,
        job: Job,
        every_seconds: float,
        on_event: Callable[[str], object],
        state: ChainState,
    ) -> None:
        self._run, self._folder = run, folder
        self._client, self._job = client, job
        self._every = every_seconds
        self._on_event = on_event
        self._state = state
        self._polls = 0
        self._over_polls = 0
        self._polls_without_output = 0
        self._refusals = 0
        self._last_event = ""

    def run(self) -> ChainState:
        self._write()
        failures: Counter[str] = Counter()
        while self._state.status not in FINAL:
            try:
                self._step()
                failures.clear()
            except KaggleError as error:
                failures[error.kind] += 1
                if failures[error.kind] > _MOST_FAILURES.get(error.kind, 0):
                    raise
                self._event(f"no useful answer from Kaggle; asks again: {error.message}")
                self._sleep(_LOOK)
        return self._state

    def _step(self) -> None:
        session = self._state.newest
        if (self._folder / STOP_FILE).exists():
            self._set("stopped", "stopped by a command")
        elif session and session.status == "pushing":
            self._push(session)
        elif session and session.status == "running":
            self._poll(session)
        else:
            self._continue(session)

    def _continue(self, session: SessionRecord | None) -> None:
        """After the end of a session, fetch the run if it is finished, give up, or begin the next session."""
        if session and session.outcome == "finished":
            self._fetch(session)
            return
        last_two = [item for item in self._state.sessions if item.is_counted][-2:]
        if len(last_two) == 2 and not any(item.has_progress for item in last_two):
            before, last = last_two
            first_line = before.reason.partition("\n")[0]
            lines = [
                "two sessions in a row made no progress",
                f"session {before.number}: {first_line}",
                f"session {last.number}: {last.reason}",
            ]
            self._set("failed", "\n".join([*lines, *self._log_tail()]))
            return
        if self._job.package:
            upload_package(self._client, self._state, self._job, self._folder, self._every, self._event)
        output = self._state.newest_output
        slugs = [f"{self._state.base}-a", f"{self._state.base}-b"]
        number = len(self._state.sessions) + 1
        self._state.sessions.append(
            SessionRecord(
                number=number,
                nonce=secrets.token_hex(16),
                slug=next(slug for slug in slugs if output is None or slug != output.slug),
                limit_seconds=self._next_limit(),
                previous={"kernel": self._state.kernel(output), "nonce": output.nonce} if output else None,
            )
        )
        self._set("pushing", f"session {number}")

    def _next_limit(self) -> float:
        limit = self._state.limit_seconds
        for session in self._state.sessions:
            if session.is_cut_short and 0 < session.lived_seconds < session.limit_seconds:
                limit = min(limit, _AFTER_LOSS * session.lived_seconds)
        return max(limit, _LEAST_LIMIT * self._state.limit_seconds)

    def _within_quota(self, limit: float) -> float | None:
        """Return the limit of a session within the week's quota; None after waiting because too little is left."""
        quota = self._client.quota()
        seconds = session_seconds(quota, limit)
        if seconds is None:
            self._wait_for_quota(left_text(quota), quota["refresh"])
        return seconds

    def _wait_for_quota(self, reason: str, refresh: str | None) -> None:
        if not self._job.wait:
            raise quota_error(reason, refresh)
        self._wait(reason, refresh)

    def _wait(self, reason: str, until: str | None) -> None:
        self._set("waiting", reason, until)
        self._event(f"waiting: {reason}" + (f"; until {until}" if until else "; asks again regularly"))
        self._sleep(5)

    def _push(self, session: SessionRecord) -> None:
        """Push a session once: one whose push was tried already is looked for on Kaggle first."""
        kernel = self._state.kernel(session)
        if session.pushed_at is not None and self._is_landed(session, kernel):
            return
        limit = self._within_quota(self._next_limit()) if self._is_quiet() else None
        if limit is None:
            return
        self._refuse_other_machine(session.slug)
        session.limit_seconds = limit  # the quota may have shrunk while it waited
        output = self._state.newest_output
        session.pushed_at = time.time()
        self._set("pushing", f"session {session.number}")
        try:
            with tempfile.TemporaryDirectory(prefix="shoestring-kaggle-") as folder:
                write_kernel(Path(folder), self._state, session, self._job)
                answer = self._client.push(
                    Path(folder), seconds=math.ceil(session.limit_seconds), accelerator=self._job.accelerator
                )
        except KaggleError as error:
            self._after_refused_push(session, error)
            return
        self._refusals = 0
        self._started(session, answer["version"])
        if answer["invalid"]:
            self._client.delete_kernel(kernel)
            names = ", ".join(map(str, answer["invalid"]))
            self._end(session, "refused", f"Kaggle did not attach {names}, so the session was deleted")
            return
        origin = f" and continues from session {output.number}" if output else ""
        self._event(f"session {session.number} is pushed: {kernel}, at most {seconds_text(limit)}{origin}")

    def _after_refused_push(self, session: SessionRecord, error: KaggleError) -> None:
        if error.kind == "temporary":  # it may have landed: `pushed_at` makes the next step look for it
            self._event(f"session {session.number}: no answer to the push ({error.message}); looking for it on Kaggle")
            return
        if error.kind in ("places", "quota", "forbidden"):
            session.pushed_at = None
        if error.kind == "quota":
            self._wait_for_quota(error.message, self._refresh())
        elif error.kind == "places":
            self._wait("all GPU sessions of the account are running", None)
        elif error.kind == "forbidden" and self._refusals < _FORBIDDEN:
            self._refusals += 1
            self._wait(f"Kaggle refuses for now: {error.message}", None)
        else:
            self._write()
            raise error

    def _refresh(self) -> str | None:
        with suppress(KaggleError):
            return self._client.quota()["refresh"]  # type: ignore[no-any-return]
        return None

    def _is_landed(self, session: SessionRecord, kernel: str) -> bool:
        """Return whether a push that was tried has landed, after looking for it for a while."""
        for _ in range(_RECONCILE):
            source = self._client.source(kernel)
            if source and session.nonce in source["source"]:
                self._started(session, source["version"])
                self._event(f"session {session.number} has landed: {kernel}")
                return True
            self._sleep(1)
        return False

    def _is_quiet(self) -> bool:
        """Wait a while until no session of the chain is shown as running; the status of one that is over may lag."""
        slugs = sorted({item.slug for item in self._state.sessions})
        for _ in range(_GRACE):
            answers = [self._client.status(f"{self._state.user}/{slug}") for slug in slugs]
            if not any(answer and answer["status"] in _RUNS for answer in answers):
                return True
            if (self._folder / STOP_FILE).exists():
                return False
            self._sleep(1)
        target = self._state.sessions[-1]
        self._refuse_other_machine(target.slug)
        if self._state.newest_output is None or target.slug != self._state.newest_output.slug:
            self._client.delete_kernel(self._state.kernel(target))  # whatever still runs there ends
        return True

    def _refuse_other_machine(self, slug: str) -> None:
        """Raise RunError if the kernel has a session that this chain has not pushed: a copy of the directory goes on
        elsewhere, and each would delete the sessions of the other."""
        kernel = f"{self._state.user}/{slug}"
        source = self._client.source(kernel)
        if source and not any(item.nonce in source["source"] for item in self._state.sessions):
            raise RunError(
                f"{kernel} has a session that {self._run} knows nothing of: a copy of this directory goes on elsewhere",
                hint="go on there; or delete the kernel on www.kaggle.com, then give the same command again",
            )

    def _started(self, session: SessionRecord, version: int | None) -> None:
        session.status, session.version = "running", version
        self._polls = self._over_polls = self._polls_without_output = 0
        self._set("running", f"session {session.number}")

    def _poll(self, session: SessionRecord) -> None:
        """Ask for a session that runs, and find out whether it is over."""
        kernel = self._state.kernel(session)
        answer = self._client.status(kernel)
        status = answer["status"] if answer else "missing"
        seconds_now = time.time()
        if status == "running" and session.started_at is None:
            session.started_at = seconds_now
            self._write()
            self._event(f"session {session.number} runs")
        is_running = status in _RUNS
        lived = seconds_now - session.started_at if session.started_at else 0.0
        is_late = lived > session.limit_seconds + _GRACE * self._every
        if (not is_running or is_late or self._polls % _LOOK == _LOOK - 1) and self._is_output_there(session, status):
            return
        self._polls += 1
        if not is_running:
            self._over_polls += 1
            if self._polls_without_output > _GRACE or self._over_polls > _UNREADABLE:
                message = f": {answer['message']}" if answer and answer["message"] else ""
                self._lost(session, f"it ended ({status}{message}) and left no output", status)
                return
        elif is_late:
            self._refuse_other_machine(session.slug)
            self._client.delete_kernel(kernel)
            self._lost(session, "it ran on after its limit and was deleted, and its output with it", status)
            return
        else:
            self._over_polls = self._polls_without_output = 0
            if self._polls % _REPORT == 0 and session.started_at:
                limit = seconds_text(session.limit_seconds)
                self._event(f"session {session.number} has run for {seconds_text(lived)} of at most {limit}")
        self._sleep(1)

    def _is_output_there(self, session: SessionRecord, status: str) -> bool:
        """Return whether the output says that the session is over, which is more reliable than its status."""
        kernel = self._state.kernel(session)
        output = fetching.inspect_output(self._client, kernel, session.nonce, session_file(self._folder, session))
        if output.session and output.session.status != "running":
            self._record_end(session, kernel, output.session)
            return True
        if status in _RUNS or not output.is_known:
            return False
        self._polls_without_output += 1
        if output.session and output.newest_checkpoint and self._polls_without_output > _KILLED:
            self._record_kill(session, *output.newest_checkpoint)
            return True
        return False

    def _record_kill(self, session: SessionRecord, checkpoint: str, update: int) -> None:
        """Record a session that was killed, and whose output was left nevertheless; the next one verifies it."""
        output = self._state.newest_output
        session.outcome, session.checkpoint, session.update = "killed", checkpoint, update
        session.has_progress = update > (output.update or 0 if output else 0)
        self._end(session, "ended", "it was killed, and its output was left")
        self._event(f"session {session.number} was killed and has left update {update}")

    def _record_end(self, session: SessionRecord, kernel: str, result: SessionFile) -> None:
        session.ended_at = time.time()
        session.outcome, session.update, session.total_updates = result.status, result.update, result.total_updates
        session.checkpoint = result.checkpoint
        output = self._state.newest_output
        is_further = result.checkpoint is not None and result.update > (output.update or 0 if output else 0)
        session.has_progress = result.status == "finished" or is_further
        with suppress(OSError):
            fetching.fetch_small_files(self._client, kernel, result, self._folder)
        for name in result.damaged:
            self._event(f"session {session.number}: damaged on the way: {name}")
        reason = result.reason or f"it ended at update {result.update}"
        reason += f"; {result.hint}" if result.hint else ""
        self._end(session, "ended", reason)
        if result.exit_status == UsageError.status and not session.has_progress:
            self._set("failed", reason + (_CHANGED if session.previous else ""))  # another would refuse it as well
        position = f"update {result.update}" + (f" of {result.total_updates}" if result.total_updates else "")
        explanation = f": {result.reason}" if result.reason else ""
        self._event(f"session {session.number} is {result.status} at {position}{explanation}")
        remaining = forecast(self._state, self._folder)
        if remaining and session.has_progress and result.status != "finished":
            for line in remaining.text.splitlines():
                self._event(line)

    def _lost(self, session: SessionRecord, reason: str, status: str) -> None:
        session.is_cut_short = status not in ("complete", "running")
        session.ended_at = time.time()
        if session.started_at is None:
            session.started_at = session.pushed_at
        self._end(session, "lost", reason)
        self._event(f"session {session.number} is lost: {reason}")

    def _end(self, session: SessionRecord, status: Any, reason: str) -> None:
        session.status, session.reason = status, reason
        session.ended_at = session.ended_at or time.time()
        self._set("preparing", f"session {session.number} is over")

    def _fetch(self, session: SessionRecord) -> None:
        """Put the finished run into the directory."""
        self._set("fetching", f"the run of session {session.number}")
        self._event("the run is finished; fetching it")
        fetch_output(self._run, self._client, self._state, session, self._event)
        self._set("finished", session.reason)
        self._event(f"the run is in {self._run}")

    def _log_tail(self) -> list[str]:
        """Return the last lines of the newest session's log: the file that it left, else what Kaggle has."""
        session = self._state.newest
        with suppress(OSError, ValueError):
            return _tail(
                read_bytes(self._folder / fetching.LOG, follow=False, max_bytes=_LOG_BYTES).decode("utf-8", "replace")
            )
        with suppress(KaggleError):
            return _tail(self._client.log_text(self._state.kernel(session))) if session else []
        return []

    def _sleep(self, polls: int) -> None:
        """Wait for so many intervals; a stop file ends the wait."""
        end = time.monotonic() + polls * self._every
        while (left := end - time.monotonic()) > 0 and not (self._folder / STOP_FILE).exists():
            time.sleep(min(left, 0.5))

    def _set(self, status: Any, reason: str, until: str | None = None) -> None:
        self._state.status, self._state.reason, self._state.waiting_until = status, reason, until
        self._write()

    def _write(self) -> None:
        self._state.write(self._folder)

    def _event(self, text: str) -> None:
        if text != self._last_event:  # a wait repeats itself
            self._last_event = text
            self._on_event(text)


def session_file(folder: Path, session: SessionRecord) -> Path:
    """Return the path of what a session left about itself."""
    return folder / f"session-{session.number:03d}.json"


def fetch_output(
    run: Path,
    client: Client,
    state: ChainState,
    session: SessionRecord,
    on_note: Callable[[str], object] = lambda _: None,
) -> None:
    """Put the run that a session left into the directory `run`. Raises RunError if it has left none, or not all."""
    kernel, file = state.kernel(session), session_file(run / FOLDER, session)
    left = read_session_file(file) if file.exists() else None
    for _ in range(_LOOK):
        if left is None or left.nonce != session.nonce:
            left = fetching.inspect_output(client, kernel, session.nonce, file).session
    if left is None or left.status == "running":
        raise RunError(
            f"session {session.number} was killed or its output is gone: {kernel} has none that can be verified",
            hint="go on with the chain: the next session verifies it and leaves another output",
        )
    fetching.fetch_run(client, kernel, left, run, on_note)
    _name_recipe(run / "plan.json", state.recipe)


def _name_recipe(plan_file: Path, recipe: str) -> None:
    """Let the plan of a run name the recipe's file on this machine, in place of the copy that was on Kaggle."""
    with suppress(UsageError):  # a plan that cannot be read is reported by those who need it
        file, plan = file_of(recipe), StoredPlan.read(plan_file)
        if file and plan and plan.reference and not plan.is_changed:
            name = str(file) + recipe[len(recipe.partition(":")[0]) :]
            dataclasses.replace(plan, reference=name).write(plan_file)


def _tail(text: str) -> list[str]:
    return [f"log: {line}" for line in text.splitlines()[-_LOG_LINES:]]
