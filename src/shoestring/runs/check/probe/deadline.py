"""The deadline of a probe, through which it ends the loops of training and evaluation: they poll it anyway."""

from collections.abc import Callable

from shoestring.training.session.deadline import Deadline

REASON = "the probe has measured enough"


class ProbeDeadline(Deadline):
    """A session without a limit, which is over as soon as what observes its work says so."""

    def __init__(self) -> None:
        super().__init__(None)
        self._observers: dict[str, Callable[[], bool]] = {}
        self._is_over = False

    def observing(self, kind: str, is_enough: Callable[[], bool]) -> None:
        """Begin a phase of the probe: after each piece of work of this kind, `is_enough` tells whether it is over."""
        self._observers, self._is_over = {kind: is_enough}, False

    def observe(self, kind: str, seconds: float) -> None:
        super().observe(kind, seconds)
        if kind in self._observers and self._observers[kind]():
            self._is_over = True

    def reached(self) -> bool:
        return self._is_over

    def limit_text(self) -> str:
        return REASON
