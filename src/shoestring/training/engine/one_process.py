"""The updates of one process whose gradients are summed in the order of the microbatches: one logical shard."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from shoestring.training.data.logical_shards import LogicalShards
from shoestring.training.data.own_generators import LazyGenerators
from shoestring.training.engine.block_order import CheckedBlockOrder
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

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, *, seed: int, block_order: CheckedBlockOrder | None = None
    ) -> None:
        """With a `block_order` the microbatches of an update take turns at each streamed block."""
        self._model, self._optimizer, self._seed, self.block_order = model, optimizer, seed, block_order
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
        losses have created generators, which were not seeded, or if the order of its microbatches is refused; only
        gradients and buffers have changed then.
        """
        users = {"loss": loss, "model": self._model}
        generators, order = self.generators.search(**users), self.block_order
        generators.seed_all(LogicalShards().seed(self._seed, number, 0))
        run_all = order.begin(generators) if order and run is None else None
        try:
            for _, microbatches in shards:
                total = add_gradients(
                    self._model,
                    loss,
                    microbatches,
                    samples=samples,
                    mixed_precision=mixed_precision,
                    run=run,
                    run_all=run_all,
                )
        except Exception as error:
            if run_all is None or order is None or not order.excuses(error):
                raise
            return RepeatedUpdate()
        assert total is not None, "an update needs at least one microbatch"
        if self.generators.has_new(**users) or (order and run is None and not order.accepts(total)):
            return RepeatedUpdate()
        return step(
            self._optimizer, total, mixed_precision=mixed_precision, clip_norm=clip_norm, on_gradients=on_gradients
        )
