"""Waiting for a session that runs, and recording how it has ended.

Its output says so more reliably than its status, which lags and may be wrong.
"""

from __future__ import annotations

import time
from contextlib import suppress

from shoestring.base.errors import UsageError
from shoestring.base.units import seconds_text
from shoestring.remote.kaggle import fetching
from shoestring.remote.kaggle.active_chain import ActiveChain
from shoestring.remote.kaggle.chain_file import SessionRecord, session_file
from shoestring.remote.kaggle.forecast import forecast
from shoestring.remote.kaggle.kernel.session_file import SessionFile
from shoestring.remote.kaggle.pushing import GRACE, WHILE_RUNNING, refuse_other_machine

LOOK = 5
"""Polls between two looks at the output of a session that runs."""
_KILLED, _UNREADABLE = 3, 60
"""Polls until a session that is shown as over was killed, and until its output is given up although Kaggle never showed
what is in it."""
_REPORT = 30
"""Polls between two lines about a session that runs."""
_CHANGED = (
    "\nthe sessions before accepted the same command, so something has changed on Kaggle since then: restore it, for "
    "example by a new version of the dataset with its earlier files, or start another run: --run runs/NAME"
)


def poll(chain: ActiveChain, session: SessionRecord) -> None:
    """Ask for a session that runs, and find out whether it is over."""
    kernel = chain.state.kernel(session)
    answer = chain.client.status(kernel)
    status = answer["status"] if answer else "missing"
    chain.server_time = answer["time"] if answer else None
    if status == "running" and None in (session.started_at, session.server_started_at):
        is_new = session.started_at is None
        session.started_at = session.started_at or time.time()
        session.server_started_at = chain.server_time
        chain.write()
        if is_new:
            chain.event(f"session {session.number} runs")
    is_running = status in WHILE_RUNNING
    lived = session.running_seconds(time.time(), chain.server_time)
    is_late = lived > session.limit_seconds + GRACE * chain.every_seconds
    if (not is_running or is_late or chain.polls % LOOK == LOOK - 1) and _is_output_there(chain, session, status):
        return
    chain.polls += 1
    if not is_running:
        chain.over_polls += 1
        if chain.polls_without_output > GRACE or chain.over_polls > _UNREADABLE:
            message = f": {answer['message']}" if answer and answer["message"] else ""
            _lost(chain, session, f"it ended ({status}{message}) and left no output", status)
            return
    elif is_late:
        refuse_other_machine(chain, session.slug)
        chain.client.delete_kernel(kernel)
        _lost(chain, session, "it ran on after its limit and was deleted, and its output with it", status)
        return
    else:
        chain.over_polls = chain.polls_without_output = 0
        if chain.polls % _REPORT == 0 and lived:
            limit = seconds_text(session.limit_seconds)
            chain.event(f"session {session.number} has run for {seconds_text(lived)} of at most {limit}")
    chain.sleep(1)


def _is_output_there(chain: ActiveChain, session: SessionRecord, status: str) -> bool:
    """Return whether the output says that the session is over, which is more reliable than its status."""
    kernel = chain.state.kernel(session)
    output = fetching.inspect_output(chain.client, kernel, session.nonce, session_file(chain.folder, session))
    if output.session and output.session.status != "running":
        _record_end(chain, session, kernel, output.session)
        return True
    if status in WHILE_RUNNING or not output.is_known:
        return False
    chain.polls_without_output += 1
    if output.session and output.newest_checkpoint and chain.polls_without_output > _KILLED:
        _record_kill(chain, session, *output.newest_checkpoint)
        return True
    return False


def _record_kill(chain: ActiveChain, session: SessionRecord, checkpoint: str, update: int) -> None:
    """Record a session that was killed, and whose output was left nevertheless; the next one verifies it."""
    output = chain.state.newest_output
    session.outcome, session.checkpoint, session.update = "killed", checkpoint, update
    session.has_progress = update > (output.update or 0 if output else 0)
    chain.end(session, "ended", "it was killed, and its output was left")
    chain.event(f"session {session.number} was killed and has left update {update}")


def _record_end(chain: ActiveChain, session: SessionRecord, kernel: str, result: SessionFile) -> None:
    session.outcome, session.update, session.total_updates = result.status, result.update, result.total_updates
    session.checkpoint = result.checkpoint
    output = chain.state.newest_output
    is_further = result.checkpoint is not None and result.update > (output.update or 0 if output else 0)
    session.has_progress = result.status == "finished" or is_further
    with suppress(OSError):
        fetching.fetch_small_files(chain.client, kernel, result, chain.folder)
    for name in result.damaged:
        chain.event(f"session {session.number}: damaged on the way: {name}")
    reason = result.reason or f"it ended at update {result.update}"
    reason += f"; {result.hint}" if result.hint else ""
    chain.end(session, "ended", reason)
    if result.exit_status == UsageError.status and not session.has_progress:
        chain.set("failed", reason + (_CHANGED if session.previous else ""))  # another would refuse it as well
    position = f"update {result.update}" + (f" of {result.total_updates}" if result.total_updates else "")
    explanation = f": {result.reason}" if result.reason else ""
    chain.event(f"session {session.number} is {result.status} at {position}{explanation}")
    remaining = forecast(chain.state, chain.folder)
    if remaining and session.has_progress and result.status != "finished":
        for line in remaining.text.splitlines():
            chain.event(line)


def _lost(chain: ActiveChain, session: SessionRecord, reason: str, status: str) -> None:
    session.is_cut_short = status not in ("complete", "running")
    if session.started_at is None:
        session.started_at = session.pushed_at
    chain.end(session, "lost", reason)
    chain.event(f"session {session.number} is lost: {reason}")
