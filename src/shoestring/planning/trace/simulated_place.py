"""A simulated device of one of several processes, for which `training/engine/assembly.py` assembles a traced update.

Each process has whole weights, or an equal share of them (`fsdp.py`). Loops of one's own use DistributedDataParallel
(`distributed.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shoestring.base.settings import Precision, Settings
from shoestring.planning.trace import loading, offloading, two_devices
from shoestring.planning.trace.distributed import DistributedReplicas
from shoestring.planning.trace.event_log import EventLog
from shoestring.planning.trace.folding import Folding
from shoestring.planning.trace.fsdp import FsdpShards
from shoestring.planning.trace.loading import Loading
from shoestring.planning.trace.microbatches import Hooks, Microbatches
from shoestring.planning.trace.simulated_device import DEVICE
from shoestring.planning.trace.traced_precision import traced_precision
from shoestring.planning.trace.traced_ranks import TracedRanks
from shoestring.recipe.optimizers import BuiltOptimizer
from shoestring.recipe.options import LoadedRecipe
from shoestring.techniques import adapt, checkpointing, kernels
from shoestring.training.data.logical_shards import LogicalShards
from shoestring.training.engine.parallel.divided_optimizer import divide
from shoestring.training.engine.precision import MixedPrecision


def traced_shards(settings: Settings, gpus: int, *, torch_ddp: bool) -> int:
    """Return how many logical shards of a GPU are traced.

    More than eight need the memory of eight, but for one sum of gradients that is pending each time they double.
    """
    if torch_ddp or (gpus > 1 and settings.sharding in ("zero2", "zero3")):
        return 1
    return min(8, (settings.logical_shards or gpus) // gpus)


class SimulatedPlace:
    """A simulated device, whose memory `log` records."""

    device = torch.device(DEVICE)

    def __init__(
        self,
        log: EventLog,
        model: nn.Module,
        settings: Settings,
        microbatches: Microbatches,
        stack: ExitStack,
        *,
        gpus: int,
        is_gpu: bool,
        torch_ddp: bool,
        way_of_loading: Loading,
        folds: bool,
    ) -> None:
        """`model` is the adapted model in host memory. Calls of its blocks are redirected until `stack` is closed."""
        self._log, self._model, self._microbatches, self._stack = log, model, microbatches, stack
        self._is_gpu, self._torch_ddp, self._way_of_loading = is_gpu, torch_ddp, way_of_loading
        self._folds = folds and settings.offload == "no" and not torch_ddp
        self._gpus = gpus
        self._own_shards = traced_shards(settings, gpus, torch_ddp=torch_ddp)
        self.ranks = self._ranks(0)
        self.hooks = Hooks()
        self.streamable: offloading.StreamableBlocks | None = None
        """The blocks that can be streamed, once a model with whole weights has moved to the device."""
        self.parameters: list[nn.Parameter] = []
        """The whole parameters on the device."""

    @property
    def shards(self) -> LogicalShards:
        """The logical shards of an update that are traced."""
        return LogicalShards.of_rank(self._own_shards * self.ranks.size, self.ranks.rank, self.ranks.size)

    def model(self, loaded: LoadedRecipe, settings: Settings) -> nn.Module:  # noqa: ARG002
        return self._model

    def move(self, model: nn.Module, loaded: LoadedRecipe, settings: Settings) -> None:
        is_by_engine = self._way_of_loading == "engine" and loaded.parts.learning.trainer is None
        if is_by_engine and settings.offload != "parameters":
            self.streamable = offloading.StreamableBlocks(model, loaded.parts)
        if settings.is_pipeline:
            two_devices.move(self._log, model, loaded.parts, settings, self._microbatches)
        elif self._way_of_loading == "transformers":
            loading.load_with_transformers(self._log, model)
        else:
            offloading.move(self._log, model, loaded.parts, settings, from_host=self._is_gpu)
        if self.streamable:
            self.streamable.measure()
        self._label(model)

    def compile(self, model: nn.Module, loaded: LoadedRecipe, settings: Settings) -> None:
        """Do nothing: the kernels of compiled blocks are estimated from those of the others."""

    def divide(self, model: nn.Module, blocks: list[nn.Module], settings: Settings) -> Any:
        # FSDP2 moves parameters, not layers.
        loading.move_model(self._log, model, from_host=self._is_gpu, flattens=False)
        self._label(model)
        self.hooks = FsdpShards(
            self._log,
            model,
            blocks,
            self._gpus,
            reshard_after_forward=settings.sharding == "zero3",
            on_host=settings.offload == "parameters",
        )
        return self.hooks

    def optimizer(self, loaded: LoadedRecipe, model: nn.Module) -> BuiltOptimizer:
        """Return the optimizer of the rank that has the largest share of its states, if they are divided."""
        self._observe(model, checkpointing.blocks(model, loaded.parts))
        optimizer = adapt.optimizer(loaded, model)
        sizes = [0] * self.ranks.size
        for parameter, rank in divide([group["params"] for group in optimizer.param_groups], self.ranks.size).items():
            sizes[rank] += parameter.numel()
        self.ranks = self._ranks(sizes.index(max(sizes)))
        return BuiltOptimizer(optimizer=optimizer)

    def choose_kernel(self, optimizer: Optimizer, settings: Settings) -> None:
        kernels.choose(optimizer, settings.optimizer_kernel, foreach_by_default=self._is_gpu)

    def mixed_precision(self, name: Precision) -> MixedPrecision:
        return traced_precision(name, self._microbatches.begin_backward)

    def _label(self, model: nn.Module) -> None:
        self.parameters = list(model.parameters())
        self._log.label(self.parameters, "weights")
        self._log.label(model.buffers(), "buffers")

    def _observe(self, model: nn.Module, blocks: list[nn.Module]) -> None:
        """Fold the blocks of a model that all techniques have been applied to, and attach what gathers its weights."""
        self._microbatches.folding = Folding(self._log, model, blocks if self._folds else None)
        self._stack.enter_context(self._microbatches.folding.attached())
        if self.streamable:
            self._stack.enter_context(self.streamable.observed(self._log))
        if self._torch_ddp and self._gpus > 1:
            self.hooks = DistributedReplicas(self._log, model)
        if isinstance(self.hooks, FsdpShards):
            self.hooks.attach()
        self._microbatches.hooks = self.hooks

    def _ranks(self, rank: int) -> TracedRanks:
        size = 1 if self._torch_ddp else self._gpus
        return TracedRanks(rank, size, on_exchange=self._label_buckets, on_step=self._mark_step)

    def _label_buckets(self, tensors: Sequence[Tensor]) -> None:
        self._log.label(tensors, "gradient buckets")  # those that are no gradients or weights

    def _mark_step(self) -> None:
        self._microbatches.mark("optimizer")
