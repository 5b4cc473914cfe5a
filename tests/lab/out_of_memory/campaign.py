"""One case after another: the n-th request of a piece of work fails, and its outcome is classified."""

import faulthandler
import gc
import shutil
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from shoestring.base.errors import ShoestringError

from .injection import ALWAYS, every_allocation_is_a_request, failing, free_bytes

COUNTS = (1, 2, ALWAYS)
"""One failure, two in succession, all from there on."""
SECONDS = 120
"""A case that takes longer hangs: the stacks of its threads are printed, and the process ends."""

SAME, CONTINUED, ERROR = "same bits", "documented error, then the same bits", "documented error"
RIGHT = (SAME, CONTINUED, ERROR)


@dataclass(frozen=True)
class Ended:
    """How a piece of work has ended: with an error of Shoestring, another error, or neither. No exception is kept."""

    error: str = ""
    hint: str = ""
    status: int = 0
    traceback: str = ""


@dataclass(frozen=True)
class Case:
    """The outcome of a piece of work whose requests failed from number `first` on, `count` of them."""

    first: int
    count: int
    outcome: str
    """One of `RIGHT`, or a description of the defect."""
    places: tuple[str, ...]
    seconds: float
    error: str = ""


class Work(Protocol):
    """A piece of work that can be done again and again, with the same requests for memory."""

    def begin(self, folder: Path) -> None:
        """Prepare a new attempt in an empty folder, without failures."""

    def act(self) -> object:
        """Do the work; the requests for memory are counted here."""

    def check(self, ended: Ended) -> str:
        """Return the outcome, after the failures have ended; raise AssertionError for a defect."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A piece of work, and how its requests for memory are counted."""

    name: str
    work: Callable[[], Work]
    each: bool = True
    """Whether each tensor is a request, or each segment of PyTorch's caching allocator."""
    counts: tuple[int, ...] = COUNTS


def ended(act: Callable[[], object]) -> Ended:
    """Do the work and return how it ended."""
    try:
        act()
    except ShoestringError as error:
        return Ended(error=error.message, hint=error.hint or "", status=error.status)
    except Exception:  # noqa: BLE001  (any other error is a defect)
        return Ended(traceback=traceback.format_exc())
    return Ended()


def is_documented(result: Ended) -> bool:
    """Return whether the work has ended with the documented error: it says what it is, and what to do."""
    return result.error.startswith("out of memory") and bool(result.hint) and result.status == 1


class Campaign:
    """The cases of one scenario."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario, self._folder = scenario, folder
        self._work = scenario.work()
        self._number = 0
        self.requests = 0
        """How many requests the work makes without failures."""

    def __enter__(self) -> "Campaign":
        self._stack = ExitStack()
        if self.scenario.each:
            self._stack.enter_context(every_allocation_is_a_request())
        for _ in range(2):  # the first one also loads what stays
            case = self.run(0, 0)
            assert case.outcome == SAME, (case.outcome, case.error)
        gc.collect()
        gc.freeze()  # what is loaded is not searched for garbage again, which takes longer than a case
        return self

    def __exit__(self, *_: object) -> None:
        gc.unfreeze()
        self._stack.close()

    def cases(self, every: int = 1, offset: int = 0, counts: Iterable[int] | None = None) -> Iterator[Case]:
        """Run the cases whose number is `offset` modulo `every`, for each count, until no request is that late."""
        for count in counts or self.scenario.counts:
            first = 1 + offset % every
            while (case := self.run(first, count)).outcome != "not reached":
                yield case
                first += every

    def run(self, first: int, count: int) -> Case:
        """Run one case. Memory is lost if it is still in use after a repetition too: some is allocated once."""
        case, lost = self._run(first, count)
        if case.outcome in RIGHT and lost and first:
            case, lost = self._run(first, count)
            if case.outcome in RIGHT and lost:
                return replace(case, outcome=f"{lost} bytes are still in use")
        return case

    def _run(self, first: int, count: int) -> tuple[Case, int]:
        """Run a case once, and return it with the bytes that are still in use afterwards."""
        self._number += 1
        folder = self._folder / str(self._number)
        folder.mkdir(parents=True)
        started_at = time.monotonic()
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        try:
            self._work.begin(folder)
            free_before = free_bytes()
            with failing(first, count, each=self.scenario.each) as requests:
                result = ended(self._work.act)
            if not first:
                self.requests = requests.count
            lost = free_before - free_bytes(free_before)
            outcome = self._outcome(result, reached=first == 0 or bool(requests.places) or requests.count >= first)
        finally:
            faulthandler.cancel_dump_traceback_later()
        shutil.rmtree(folder)
        return Case(first, count, outcome, tuple(requests.places), time.monotonic() - started_at, result.error), lost

    def _outcome(self, result: Ended, *, reached: bool) -> str:
        if not reached:
            return "not reached"
        if result.traceback:
            return f"a traceback: {result.traceback[-1500:]}"
        if result.error and not is_documented(result):
            return f"another error: {result.error} | hint: {result.hint}"
        try:
            return self._work.check(result)
        except AssertionError as error:
            return str(error)
