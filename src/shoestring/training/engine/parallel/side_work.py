"""Work that runs beside the computation of a device, in order: on a GPU in a stream, otherwise in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol

import torch


class SideWork(Protocol):
    """Runs pieces of work one after the other, beside what the caller does next."""

    def start(self, act: Callable[[], None]) -> None:
        """Run `act` after the earlier pieces, and after all that the caller has computed."""

    def wait(self) -> None:
        """Let what the caller computes next wait for all pieces. Raises the first error of one of them."""


def side_work(device: torch.device) -> SideWork:
    """Return side work for tensors on the device."""
    return SideStream(device) if device.type == "cuda" else SideThread()


class SideStream:
    """A stream of a GPU. The host queues each piece at once, so its errors are raised by `start`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = None

    def start(self, act: Callable[[], None]) -> None:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            act()

    def wait(self) -> None:
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)


class SideThread:
    """A thread. After an error the pieces that follow are not run."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, act: Callable[[], None]) -> None:
        if self._thread is None:
            # A daemon does not keep a process from ending that waits for a peer in its last collective.
            self._thread = threading.Thread(target=self._run, name="exchange", daemon=True)
            self._thread.start()
        self._queue.put(act)

    def wait(self) -> None:
        if self._thread is None:
            return
        is_idle = threading.Event()
        self._queue.put(is_idle.set)
        is_idle.wait()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        while True:
            act = self._queue.get()
            if self._error is None or isinstance(getattr(act, "__self__", None), threading.Event):
                try:
                    act()
                except BaseException as error:  # noqa: BLE001  (raised by `wait`)
                    self._error = error
            del act  # and the tensors to which it refers
