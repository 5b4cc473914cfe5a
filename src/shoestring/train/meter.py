"""What the last updates did, read from the device and told about twice a second rather than each time."""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from shoestring.errors import RunError
from shoestring.monitor.events import Events
from shoestring.monitor.progress import Progress
from shoestring.monitor.sampling import sample
from shoestring.session.deadline import Deadline
from shoestring.train.update import UpdateResult


class Meter:
    """Collects updates and writes one `progress` event and one line of progress for those since the last."""

    def __init__(
        self,
        events: Events,
        progress: Progress,
        deadline: Deadline,
        *,
        every_seconds: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._events, self._progress, self._deadline = events, progress, deadline
        self._every, self._clock = every_seconds, clock
        self._clear()

    def add(self, result: UpdateResult, *, update: int, epoch: int, samples: int, learning_rate: float) -> None:
        """`update` updates are done, the last of them with `result`."""
        self._losses.append(result.loss)
        self._norm, self._skipped = result.gradient_norm, self._skipped + result.skipped
        self._samples += samples
        self._at = {"update": update, "epoch": epoch, "learning_rate": learning_rate}
        if self._clock() - self._since >= self._every:
            self.flush()

    def flush(self) -> None:
        """Tell what has been collected.

        Raises RunError when a loss among it is not finite: nothing that follows from it is worth saving.
        """
        if not self._losses:
            return
        losses = torch.stack(self._losses).double()
        if not torch.isfinite(losses).all():
            first = int(self._at["update"]) - len(self._losses) + int((~torch.isfinite(losses)).nonzero()[0])
            raise RunError(
                f"the loss of update {first} is {float(losses[~torch.isfinite(losses)][0])}",
                hint="the last checkpoint is from before it; lower the learning rate, or train in fp32",
            )
        count, seconds, memory = len(self._losses), self._clock() - self._since, sample()
        measured = {
            "updates": count,
            "loss": float(losses.mean()),
            "seconds": seconds,
            "samples": self._samples,
            "memory_bytes": memory.gpu_peak_reserved_bytes or memory.rss_bytes,
        }
        self._events.emit(
            "progress",
            **self._at,
            **measured,
            gradient_norm=None if self._norm is None else float(self._norm),
            skipped=self._skipped,
        )
        self._progress.update(
            update=int(self._at["update"]),
            epoch=int(self._at["epoch"]),
            updates=count,
            loss=float(losses.mean()),
            samples=self._samples,
            seconds=seconds,
            memory_bytes=measured["memory_bytes"],
            session_seconds_left=self._deadline.remaining(),
        )
        self._clear()

    def restart(self) -> None:
        """Leave out the time since the last update: it went into something else."""
        self.flush()
        self._since = self._clock()

    def _clear(self) -> None:
        self._losses: list[Tensor] = []
        self._norm: Tensor | None = None
        self._skipped = self._samples = 0
        self._at: dict[str, float] = {}
        self._since = self._clock()
