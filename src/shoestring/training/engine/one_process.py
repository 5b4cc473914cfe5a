"""The updates of one process whose gradients are summed in the order of the microbatches: one logical shard."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from shoestring.training.data.logical_shards import LogicalShards
from shoestring.training.data.own_generators import LazyGenerators
from shoestring.training.engine.precision import MixedPrecision
from shoestring.training.engine.update import (
    LossFunction,
    RepeatedUpdate,
    Runner,
    UpdateResult,
    add_gradients,
    step,
)


class OneProcess:
    """Makes the updates of a run with one logical shard."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, *, seed: int) -> None:
        self._model, self._optimizer, self._seed = model, optimizer, seed
        self.generators = LazyGenerators()
        """Those that the loss and the model hold."""

    def update(
        self,
        loss: LossFunction,
        number: int,
        shards: Iterable[tuple[int, Iterable[tuple[Any, int]]]],
        *,
        samples: int,
        mixed_precision: MixedPrecision,
        clip_norm: float | None = None,
        run: Runner | None = None,
        on_gradients: Callable[[], None] | None = None,
    ) -> UpdateResult | RepeatedUpdate:
        """Make update number `number` over the microbatches of its only shard.

        The other arguments are those of `engine.update.update`, and so are the errors. Returns a RepeatedUpdate if the
        losses have created generators, which were not seeded; only gradients and buffers have changed then.
        """
        users = {"loss": loss, "model": self._model}
        self.generators.search(**users).seed_all(LogicalShards().seed(self._seed, number, 0))
        for _, microbatches in shards:
            total = add_gradients(
                self._model, loss, microbatches, samples=samples, mixed_precision=mixed_precision, run=run
            )
        assert total is not None, "an update needs at least one microbatch"
        if self.generators.has_new(**users):
            return RepeatedUpdate()
        return step(
            self._optimizer, total, mixed_precision=mixed_precision, clip_norm=clip_norm, on_gradients=on_gradients
        )
