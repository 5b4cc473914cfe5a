"""Pushing a session to Kaggle exactly once: within the quota, and only while none of the chain runs."""

from __future__ import annotations

import math
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from shoestring.base.errors import RunError
from shoestring.base.units import seconds_text
from shoestring.remote.kaggle.active_chain import ActiveChain
from shoestring.remote.kaggle.chain_file import SessionRecord
from shoestring.remote.kaggle.client import KaggleError
from shoestring.remote.kaggle.job import write_kernel
from shoestring.remote.kaggle.quota import left_text, quota_error, session_seconds

WHILE_RUNNING = ("queued", "running", "new_script", "cancel_requested")
"""The statuses of a session that uses the quota."""
GRACE = 10
"""Polls for what Kaggle shows late."""
_RECONCILE, _FORBIDDEN = 5, 10
"""Polls for a push that may have landed, and for a refusal that passes."""
_AFTER_LOSS = 0.7
"""The part of the time that a session lived, before it was killed, that the next one is given."""
_LEAST_LIMIT = 0.25
"""The part of the chain's limit that every session is given."""


def push(chain: ActiveChain, session: SessionRecord) -> None:
    """Push a session once: one whose push was tried already is looked for on Kaggle first."""
    kernel = chain.state.kernel(session)
    if session.pushed_at is not None and _is_landed(chain, session, kernel):
        return
    limit = _within_quota(chain, next_limit(chain)) if _is_quiet(chain) else None
    if limit is None:
        return
    refuse_other_machine(chain, session.slug)
    session.limit_seconds = limit  # the quota may have shrunk while it waited
    output = chain.state.newest_output
    session.pushed_at = time.time()
    chain.set("pushing", f"session {session.number}")
    try:
        with tempfile.TemporaryDirectory(prefix="shoestring-kaggle-") as folder:
            write_kernel(Path(folder), chain.state, session, chain.job)
            answer = chain.client.push(
                Path(folder), seconds=math.ceil(session.limit_seconds), accelerator=chain.job.accelerator
            )
    except KaggleError as error:
        _after_refused_push(chain, session, error)
        return
    chain.refusals = 0
    _started(chain, session, answer["version"])
    if answer["invalid"]:
        chain.client.delete_kernel(kernel)
        names = ", ".join(map(str, answer["invalid"]))
        chain.end(session, "refused", f"Kaggle did not attach {names}, so the session was deleted")
        return
    origin = f" and continues from session {output.number}" if output else ""
    chain.event(f"session {session.number} is pushed: {kernel}, at most {seconds_text(limit)}{origin}")


def next_limit(chain: ActiveChain) -> float:
    """Return the length of the next session: shorter than one that Kaggle has killed before its limit."""
    limit = chain.state.limit_seconds
    for session in chain.state.sessions:
        if session.is_cut_short and 0 < session.lived_seconds < session.limit_seconds:
            limit = min(limit, _AFTER_LOSS * session.lived_seconds)
    return max(limit, _LEAST_LIMIT * chain.state.limit_seconds)


def _within_quota(chain: ActiveChain, limit: float) -> float | None:
    """Return the limit of a session within the week's quota; None after waiting because too little is left."""
    quota = chain.client.quota()
    seconds = session_seconds(quota, limit)
    if seconds is None:
        _wait_for_quota(chain, left_text(quota), quota["refresh"])
    return seconds


def _wait_for_quota(chain: ActiveChain, reason: str, refresh: str | None) -> None:
    if not chain.job.wait:
        raise quota_error(reason, refresh)
    _wait(chain, reason, refresh)


def _wait(chain: ActiveChain, reason: str, until: str | None) -> None:
    chain.set("waiting", reason, until)
    chain.event(f"waiting: {reason}" + (f"; until {until}" if until else "; asks again regularly"))
    chain.sleep(5)


def _after_refused_push(chain: ActiveChain, session: SessionRecord, error: KaggleError) -> None:
    if error.kind == "temporary":  # it may have landed: `pushed_at` makes the next step look for it
        chain.event(f"session {session.number}: no answer to the push ({error.message}); looking for it on Kaggle")
        return
    if error.kind in ("places", "quota", "forbidden"):
        session.pushed_at = None
    if error.kind == "quota":
        _wait_for_quota(chain, error.message, _refresh(chain))
    elif error.kind == "places":
        _wait(chain, "all GPU sessions of the account are running", None)
    elif error.kind == "forbidden" and chain.refusals < _FORBIDDEN:
        chain.refusals += 1
        _wait(chain, f"Kaggle refuses for now: {error.message}", None)
    else:
        chain.write()
        raise error


def _refresh(chain: ActiveChain) -> str | None:
    with suppress(KaggleError):
        return chain.client.quota()["refresh"]  # type: ignore[no-any-return]
    return None


def _is_landed(chain: ActiveChain, session: SessionRecord, kernel: str) -> bool:
    """Return whether a push that was tried has landed, after looking for it for a while."""
    for _ in range(_RECONCILE):
        source = chain.client.source(kernel)
        if source and session.nonce in source["source"]:
            _started(chain, session, source["version"])
            chain.event(f"session {session.number} has landed: {kernel}")
            return True
        chain.sleep(1)
    return False


def _is_quiet(chain: ActiveChain) -> bool:
    """Wait a while until no session of the chain is shown as running; the status of one that is over may lag."""
    slugs = sorted({item.slug for item in chain.state.sessions})
    for _ in range(GRACE):
        answers = [chain.client.status(f"{chain.state.user}/{slug}") for slug in slugs]
        if not any(answer and answer["status"] in WHILE_RUNNING for answer in answers):
            return True
        if chain.is_stopped():
            return False
        chain.sleep(1)
    target = chain.state.sessions[-1]
    refuse_other_machine(chain, target.slug)
    if chain.state.newest_output is None or target.slug != chain.state.newest_output.slug:
        chain.client.delete_kernel(chain.state.kernel(target))  # whatever still runs there ends
    return True


def refuse_other_machine(chain: ActiveChain, slug: str) -> None:
    """Raise RunError if the kernel has a session that this chain has not pushed: a copy of the directory goes on
    elsewhere, and each would delete the sessions of the other."""
    kernel = f"{chain.state.user}/{slug}"
    source = chain.client.source(kernel)
    if source and not any(item.nonce in source["source"] for item in chain.state.sessions):
        raise RunError(
            f"{kernel} has a session that {chain.run} knows nothing of: a copy of this directory goes on elsewhere",
            hint="go on there; or delete the kernel on www.kaggle.com, then give the same command again",
        )


def _started(chain: ActiveChain, session: SessionRecord, version: int | None) -> None:
    session.status, session.version = "running", version
    chain.polls = chain.over_polls = chain.polls_without_output = 0
    chain.set("running", f"session {session.number}")
