"""A debugger at the first line of a recipe's loss."""

import os
import pdb
import sys
from typing import Any

from shoestring.base.errors import RunError

_VARIABLE = "PYTHONBREAKPOINT"


class Debugged:
    """A recipe that stops in the debugger when its loss is computed for the first time after `is_armed` is set.

    The debugger is Python's own, or the one that PYTHONBREAKPOINT names, as for `breakpoint()`.
    """

    def __init__(self, recipe: Any) -> None:
        self._recipe = recipe
        self.is_armed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._recipe, name)

    def loss(self, model: Any, batch: Any, **stage: Any) -> Any:
        is_armed, self.is_armed = self.is_armed, False
        if not is_armed:
            return self._recipe.loss(model, batch, **stage)
        if os.environ.get(_VARIABLE, "") in ("", "pdb.set_trace"):
            # With a stream of its own, the debugger has no line editing; without one, answers on stdout mix with it.
            debugger = pdb.Pdb() if sys.stdout.isatty() else pdb.Pdb(stdout=sys.stderr)
            value = debugger.runcall(self._recipe.loss, model, batch, **stage)
            if value is None:
                raise LeftDebuggerError
            return value
        breakpoint()  # the debugger that the user has chosen; its command `step` enters the loss
        return self._recipe.loss(model, batch, **stage)


class LeftDebuggerError(RunError):
    """The debugger was left before the loss was computed."""

    def __init__(self) -> None:
        super().__init__("the debugger was left before loss() had returned", hint="its command c continues the replay")
