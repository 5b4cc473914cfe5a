"""What goes wrong, as it has been reported of Kaggle: each fault has a probability, and a seed decides.

The sources are the issues of the official client and the accounts of people who use it from programs;
`docs/guides/kaggle.md` lists them. A fault of an answer concerns one request, a fault of a session is decided when the
session starts.
"""

import random
import threading
from collections import Counter
from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Faults:
    """The probability of each fault, from 0 to 1."""

    # Of an answer to a request.
    error_before: float = 0.0
    """A 5xx, and nothing was done."""
    error_after: float = 0.0
    """A 5xx, and the request was carried out."""
    throttled: float = 0.0
    """A text instead of JSON: the client raises "Expecting value: line 1 column 1"."""
    hang: float = 0.0
    """No answer, and the connection stays open."""
    hang_after: float = 0.0
    """The same after the request was carried out."""
    token_expired: float = 0.0
    """A 401 to every request, until the client signs in again."""
    # Of a file that is downloaded.
    error_page: float = 0.0
    """A page of HTML with status 200."""
    file_error: float = 0.0
    """A 5xx."""
    truncated: float = 0.0
    """The first half of the file."""
    cut_list: float = 0.0
    """The list of the output's files ends early, without a further page."""
    # Of a session.
    killed_early: float = 0.0
    """SIGKILL long before the limit."""
    output_lost: float = 0.0
    """The session ends as it should, and its output is not kept."""
    damaged: float = 0.0
    """A byte of a checkpoint is changed when the output is stored."""
    timeout_ignored: float = 0.0
    """`session_timeout_seconds` has no effect: only the platform's own limit ends the session."""
    status_lags: float = 0.0
    """For a while after a push, the status is that of the version before."""
    status_runs_on: float = 0.0
    """For a while after the end, the status is RUNNING."""
    status_lies: float = 0.0
    """A session that has completed is shown as CANCEL_ACKNOWLEDGED."""
    no_internet: float = 0.0
    """The session has no network, although it was asked for."""


class Dice:
    """The decisions: the same seed gives the same sequence for each fault."""

    def __init__(self, faults: Faults, seed: int) -> None:
        self.faults = faults
        self.injected: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._generators = {field.name: random.Random(f"{seed} {field.name}") for field in fields(Faults)}

    def happens(self, name: str) -> bool:
        """Return whether the fault happens this time, and count it."""
        with self._lock:
            happens = self._generators[name].random() < getattr(self.faults, name)
            self.injected[name] += happens
        return happens

    def share(self, name: str, low: float, high: float) -> float:
        """Return a random number for the details of a fault."""
        with self._lock:
            return self._generators[name].uniform(low, high)
