"""An evaluation in two steps, which several GPUs can divide."""

from collections.abc import Iterable
from typing import Any


class EvaluatesBatches:
    """A recipe whose `evaluate` is `combine` of the results of `evaluate_batch`."""

    evaluate_batch: Any
    combine: Any

    def evaluate(self, model: Any, batches: Iterable[Any]) -> dict[str, Any]:
        """Return the metrics over all batches."""
        metrics: dict[str, Any] = self.combine([self.evaluate_batch(model, batch) for batch in batches])
        return metrics
