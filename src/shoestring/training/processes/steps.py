"""Decorators of steps that the processes of a session take together, or one of them for all.

The first argument of a step is what it belongs to: a session, or the request for one.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from shoestring.training.engine.memory import Failure
from shoestring.training.engine.parallel.default_group import without_default_group
from shoestring.training.processes.one_process import Processes


class _Owner(Protocol):
    @property
    def processes(self) -> Processes: ...


P = ParamSpec("P")
T = TypeVar("T")
Result = TypeVar("Result")
Owner = TypeVar("Owner", bound=_Owner)
Step = Callable[Concatenate[Owner, P], T]


def agreed(step: Step[Owner, P, T]) -> Step[Owner, P, T | Failure]:
    """Let all processes take the step, and go on when all have: an error, a stop or out-of-memory of one is one of all.

    A Failure that the step itself returns is not agreed on.
    """
    return _decorated(step, lambda processes, act: processes.call(act))


def by_first(step: Step[Owner, P, T]) -> Step[Owner, P, T | None]:
    """Let the first process take the step while the others wait; its result is there alone."""
    return _decorated(step, lambda processes, act: processes.call_first(act))


def in_turn(step: Step[Owner, P, T]) -> Step[Owner, P, T]:
    """Let the first process take the step, and then the others, which can read what it has written."""
    return _decorated(step, lambda processes, act: processes.call_in_turn(act))


def shared(step: Step[Owner, P, Any]) -> Step[Owner, P, Any]:
    """Let the first process take the step, and give its result, which is JSON, to all."""
    return _decorated(step, lambda processes, act: processes.share(act))


def with_whole_model(step: Step[Owner, P, None]) -> Step[Owner, P, None]:
    """Let the first process take the step as the only one does, while the others wait, if it has the whole model."""

    def take(processes: Processes, act: Callable[[], None]) -> None:
        if processes.has_whole_weights:
            processes.call_first(without_default_group()(act))

    return _decorated(step, take)


def _decorated(step: Step[Owner, P, T], take: Callable[[Processes, Callable[[], T]], Result]) -> Step[Owner, P, Result]:
    @wraps(step)
    def call(owner: Owner, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        return take(owner.processes, lambda: step(owner, *args, **kwargs))

    return call
