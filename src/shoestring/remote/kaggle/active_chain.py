"""A chain that a process goes on with: its state on the disk, what it tells, and how it waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoestring.remote.kaggle.chain_file import ChainState, SessionRecord
from shoestring.remote.kaggle.client import Client
from shoestring.remote.kaggle.job import Job

STOP_FILE = "stop"
"""In `DIR/kaggle`: the process that goes on with the chain ends when it sees it."""


@dataclass(kw_only=True)
class ActiveChain:
    """What the steps of a chain share. `state` is in `chain.json` before and after each of them."""

    run: Path
    folder: Path
    client: Client
    job: Job
    every_seconds: float
    on_event: Callable[[str], object]
    state: ChainState
    polls: int = 0
    """How often Kaggle was asked for the session that runs."""
    over_polls: int = 0
    """How often in a row its status was one of a session that is over."""
    polls_without_output: int = 0
    """How often its output was looked for in vain since then."""
    server_time: float | None = None
    """When Kaggle was last asked for it, by the server's clock."""
    refusals: int = 0
    """How often in a row Kaggle has refused a push."""
    last_event: str = ""

    def is_stopped(self) -> bool:
        """Return whether `shoestring kaggle stop` has asked this process to end."""
        return (self.folder / STOP_FILE).exists()

    def set(self, status: Any, reason: str, until: str | None = None) -> None:
        """Write what the chain does now, why, and until when if it waits."""
        self.state.status, self.state.reason, self.state.waiting_until = status, reason, until
        self.write()

    def write(self) -> None:
        """Write `chain.json`, from which another process can go on."""
        self.state.write(self.folder)

    def end(self, session: SessionRecord, status: Any, reason: str) -> None:
        """Write that a session is over; the next step decides what follows."""
        session.status, session.reason = status, reason
        session.ended_at, session.server_ended_at = time.time(), self.server_time
        self.set("preparing", f"session {session.number} is over")

    def event(self, text: str) -> None:
        """Tell what happens, as one sentence."""
        if text != self.last_event:  # a wait repeats itself
            self.last_event = text
            self.on_event(text)

    def sleep(self, polls: int) -> None:
        """Wait for so many intervals; a stop file ends the wait."""
        end = time.monotonic() + polls * self.every_seconds
        while (left := end - time.monotonic()) > 0 and not self.is_stopped():
            time.sleep(min(left, 0.5))
