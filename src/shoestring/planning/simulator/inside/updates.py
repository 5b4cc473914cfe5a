"""Updates: the steps of the optimizer, and the backwards before each of them."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from . import frames
from .events import Events
from .native import BACKWARD, FORWARD, OPTIMIZER, Native
from .phases import ForwardHook, Phases
from .quiet import quiet

ABANDONED = 20
"""After so many steps of another optimizer without one of the counted optimizer, the other one is counted."""


class Updates:
    """Counts the steps of the first optimizer that steps; others in the same loop do not add.

    With an optimizer for each parameter that steps in backward, the steps of the first one are the updates as well;
    they are counted when the backward has ended, because until then the update is not complete.
    """

    def __init__(self, events: Events, native: Native, phases: Phases, forward: ForwardHook) -> None:
        self.completed = 0
        self.backward_line: dict[str, Any] | None = None
        self.backward_thread: int | None = None
        """The thread that is in backward: on a GPU, the work is done in others, which have no Python frames."""
        self.after_update: list[Callable[[int], None]] = []
        self._events = events
        self._native = native
        self._phases = phases
        self._forward = forward
        self._main_optimizer: weakref.ref[Any] | None = None
        self._other_steps: dict[int, int] = {}
        self._micro_steps = 0
        self._stepped_in_backward = 0

    def install(self) -> None:
        """Add the hooks of optimizers, and replace `torch.autograd.backward`."""
        is_compiling = torch.compiler.is_compiling
        before_step, after_step = quiet(self._before_step), quiet(self._after_step)

        def step_begins(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if not is_compiling():
                before_step(optimizer)

        def step_ended(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if not is_compiling():
                after_step(optimizer)

        register_optimizer_step_pre_hook(step_begins)
        register_optimizer_step_post_hook(step_ended)
        original = torch.autograd.backward
        begin, end = quiet(self._backward_begins), quiet(self._backward_ended)

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> None:
            if is_compiling() or self.backward_thread is not None:  # checkpoints call it inside of backward
                return original(*args, **kwargs)
            begin()
            try:
                return original(*args, **kwargs)
            finally:
                end()

        torch.autograd.backward = backward

    def restart(self) -> None:
        """Begin again, in a process that was forked from this one."""
        self.completed, self.backward_line, self.backward_thread = 0, None, None
        self._main_optimizer, self._other_steps, self._micro_steps, self._stepped_in_backward = None, {}, 0, 0

    def _backward_begins(self) -> None:
        self.backward_thread = threading.get_ident()
        self._micro_steps += 1
        self._phases.enter("training")
        self._native.set_step(BACKWARD)
        self.backward_line = frames.nearest_own() or self.backward_line

    def _backward_ended(self) -> None:
        self.backward_thread = None
        self._native.set_step(FORWARD)
        if self._stepped_in_backward:
            self._stepped_in_backward = 0
            self._complete(1)

    def _before_step(self, _optimizer: Any) -> None:
        self._phases.enter("training")
        self._native.set_step(OPTIMIZER)

    def _after_step(self, optimizer: Any) -> None:
        self._native.set_step(FORWARD if self.backward_thread is None else BACKWARD)
        main_optimizer = self._main_optimizer() if self._main_optimizer is not None else None
        steps = 1
        if main_optimizer is None:
            self._main_optimizer = weakref.ref(optimizer)
        elif main_optimizer is not optimizer:
            steps = self._other_steps[id(optimizer)] = self._other_steps.get(id(optimizer), 0) + 1
            if steps < ABANDONED:
                return
            self._main_optimizer = weakref.ref(optimizer)
        self._other_steps.clear()
        if self.backward_thread is not None:
            self._stepped_in_backward += 1
        else:
            self._complete(steps)

    def _complete(self, steps: int) -> None:
        self.completed += steps
        self._events.write("update", update=self.completed, micro_steps=self._micro_steps)
        self._micro_steps = 0
        self._phases.next_update(self.completed + 1)
        self._forward.arm()  # an evaluation may follow
        for function in self.after_update:
            function(self.completed)
