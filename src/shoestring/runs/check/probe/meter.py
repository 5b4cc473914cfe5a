"""The meter of a probe, which keeps the last update."""

import math

from shoestring.training.engine.update import UpdateResult


class ProbeMeter:
    """Takes updates, also those whose values are not finite."""

    samples = 0
    """The samples of the last update."""
    loss = math.nan
    """Its loss."""

    def add(self, result: UpdateResult, *, update: int, epoch: int, samples: int, learning_rate: float) -> None:  # noqa: ARG002
        """Add the result of an update; reading its loss waits for the device."""
        self.samples, self.loss = samples, float(result.loss)

    def flush(self) -> None:
        """Report nothing: every update is reported at once."""

    def restart(self) -> None:
        """There is nothing to exclude."""
