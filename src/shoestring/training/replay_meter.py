"""The meter of a replay: it shows progress, and takes values that are not finite as they are."""

import math
import time

from shoestring.training.engine.update import UpdateResult
from shoestring.training.monitor.progress import Progress


class ReplayMeter:
    """Shows the updates of a replay as progress."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._since = progress, time.monotonic()
        self._losses: list[tuple[int, float]] = []
        self.result: UpdateResult | None = None
        """The result of the last update."""

    @property
    def not_finite(self) -> str:
        """The updates before the last one whose loss is not finite, with their losses."""
        return ", ".join(f"{update} ({loss})" for update, loss in self._losses[:-1] if not math.isfinite(loss))

    def add(self, result: UpdateResult, *, update: int, epoch: int, samples: int, learning_rate: float) -> None:  # noqa: ARG002
        """Add the result of an update; reading its loss waits for the device."""
        loss, self.result = float(result.loss), result
        self._losses.append((update, loss))
        seconds, self._since = time.monotonic() - self._since, time.monotonic()
        self._progress.update(update=update, epoch=epoch, updates=1, loss=loss, samples=samples, seconds=seconds)

    def flush(self) -> None:
        """Report nothing: every update is reported at once."""

    def restart(self) -> None:
        """Exclude the time since `flush`."""
        self._since = time.monotonic()
