"""The assembly of an update: a recipe's model and optimizer at a place, with the techniques of the settings applied.

Training assembles updates on a device, traces on a simulated one (`planning/trace/simulated_place.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import nn
from torch.optim import Optimizer

from shoestring.base.errors import UsageError
from shoestring.base.settings import Precision, Settings
from shoestring.recipe.optimizers import BuiltOptimizer
from shoestring.recipe.options import LoadedRecipe
from shoestring.techniques import adapt, checkpointing, compiled, fp32_modules, kernels, memory_format, offload
from shoestring.techniques.pipeline import placement
from shoestring.training.data.logical_shards import LogicalShards
from shoestring.training.data.seeding import derive, seed_all
from shoestring.training.engine.averaging import AveragedWeights
from shoestring.training.engine.block_order import CheckedBlockOrder
from shoestring.training.engine.memory import explaining_out_of_memory
from shoestring.training.engine.one_process import OneProcess
from shoestring.training.engine.parallel.divided_optimizer import DividedOptimizer, require_divisible
from shoestring.training.engine.parallel.fully_sharded import HINT, FullySharded, is_fully_sharded, shard
from shoestring.training.engine.parallel.ranks import ONE_RANK, Ranks
from shoestring.training.engine.parallel.updates import ShardedUpdates
from shoestring.training.engine.precision import MixedPrecision, mixed_precision


class Place(Protocol):
    """A device of one of several processes, real or simulated: what differs between them."""

    @property
    def device(self) -> torch.device: ...

    @property
    def ranks(self) -> Ranks:
        """The processes. Which of them a simulated one is may depend on the states of its `optimizer`."""

    def model(self, loaded: LoadedRecipe, settings: Settings) -> nn.Module:
        """Return the recipe's adapted model as `host_model` does."""

    def move(self, model: nn.Module, loaded: LoadedRecipe, settings: Settings) -> None:
        """Move a model that is not divided to the device, as far as it is neither offloaded nor streamed."""

    def compile(self, model: nn.Module, loaded: LoadedRecipe, settings: Settings) -> None:
        """Compile the model's blocks if the settings say so."""

    def divide(self, model: nn.Module, blocks: list[nn.Module], settings: Settings) -> FullySharded:
        """Divide the weights of a model in host memory among the ranks; each of the `blocks` is gathered by itself."""

    def optimizer(self, loaded: LoadedRecipe, model: nn.Module) -> BuiltOptimizer:
        """Return the recipe's optimizer, with the adapted states."""

    def choose_kernel(self, optimizer: Optimizer, settings: Settings) -> None:
        """Choose the implementation of the optimizer's step."""

    def mixed_precision(self, name: Precision) -> MixedPrecision:
        """Return the precision with this name."""


def host_model(build: Callable[[], nn.Module], settings: Settings) -> nn.Module:
    """Return the model that `build` returns, in host memory, in training mode and in the settings' memory format."""
    model = build().train()
    memory_format.apply(model, settings.memory_format)
    return model


@dataclass(frozen=True, kw_only=True)
class DevicePlace:
    """A device of this machine."""

    device: torch.device
    ranks: Ranks = ONE_RANK

    def model(self, loaded: LoadedRecipe, settings: Settings) -> nn.Module:
        seed_all(derive(loaded.seed, "model"))
        keeps_stored_type = loaded.parts.learning.keeps_stored_type
        return host_model(
            lambda: adapt.trained_model(
                loaded.recipe.model(), loaded.adaptation, settings, keeps_stored_type=keeps_stored_type
            ),
            settings,
        )

    def move(self, model: nn.Module, loaded: LoadedRecipe, settings: Settings) -> None:
        placement.move(model, loaded.parts, settings, self.device)

    def compile(self, model: nn.Module, loaded: LoadedRecipe, settings: Settings) -> None:
        compiled.apply(model, loaded.parts, settings, self.device)

    def divide(self, model: nn.Module, blocks: list[nn.Module], settings: Settings) -> FullySharded:
        return shard(
            model,
            blocks,
            self.ranks,
            self.device,
            reshard_after_forward=settings.sharding == "zero3",
            on_host=settings.offload == "parameters",
        )

    def optimizer(self, loaded: LoadedRecipe, model: nn.Module) -> BuiltOptimizer:
        return adapt.trained_optimizer(loaded, model, self.device)

    def choose_kernel(self, optimizer: Optimizer, settings: Settings) -> None:
        kernels.choose(optimizer, settings.optimizer_kernel)

    def mixed_precision(self, name: Precision) -> MixedPrecision:
        return mixed_precision(name, self.device)


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """What an update needs."""

    model: nn.Module
    built_optimizer: BuiltOptimizer
    """The recipe's optimizer with its schedulers."""
    optimizer: Optimizer
    """The optimizer that makes the steps: offloaded or divided, if the settings say so."""
    averages: AveragedWeights | None
    """The averaged weights, if the run has the option `ema`."""
    mixed_precision: MixedPrecision
    fully_sharded: FullySharded | None
    """The model, if its weights are divided among the ranks."""


def assemble(loaded: LoadedRecipe, settings: Settings, place: Place) -> Assembly:
    """Assemble what an update of the recipe needs at `place`.

    Raises UsageError for a technique that the model or its optimizer does not support, and NoMemoryError if they do not
    fit.
    """
    assert settings.precision is not None
    fully_sharded = None
    if is_fully_sharded(settings, place.ranks) and loaded.parts.learning.after_update:
        raise UsageError(
            f"after_update() needs whole weights, and with sharding={settings.sharding} a GPU has a part of them",
            hint=HINT,
        )
    if is_fully_sharded(settings, place.ranks) and settings.streamed_blocks:
        raise UsageError(
            f"streamed_blocks={settings.streamed_blocks}: with sharding={settings.sharding} a GPU has a part of each "
            "weight, and a streamed block copies whole ones",
            hint="set sharding=ddp or zero1, where each GPU streams its blocks; or streamed_blocks=0",
        )
    with explaining_out_of_memory("building the model, model()"):
        model = place.model(loaded, settings)
    with explaining_out_of_memory(f"moving the model to {place.device}"):
        if is_fully_sharded(settings, place.ranks):
            fully_sharded = place.divide(model, checkpointing.blocks(model, loaded.parts), settings)
        else:
            place.move(model, loaded, settings)
        place.compile(model, loaded, settings)
        checkpointing.apply(model, loaded.parts, settings.checkpointing)
        fp32_modules.apply(model, settings.fp32_modules)
    with explaining_out_of_memory("building the optimizer"):
        built = place.optimizer(loaded, model)
        place.choose_kernel(built.optimizer, settings)
        optimizer = offload.offloaded_optimizer(built.optimizer, settings)
        if settings.sharding == "zero1" and place.ranks.size > 1:
            require_divisible(built.optimizer)
            optimizer = cast("Optimizer", DividedOptimizer(optimizer, place.ranks, place.device))
    with explaining_out_of_memory("averaging the weights (ema)"):
        averages = AveragedWeights(model, loaded.ema) if loaded.ema is not None else None
    return Assembly(
        model=model,
        built_optimizer=built,
        optimizer=optimizer,
        averages=averages,
        mixed_precision=place.mixed_precision(settings.precision),
        fully_sharded=fully_sharded,
    )


class Trained(Protocol):
    """An assembly, or the state of training that was made of it."""

    @property
    def model(self) -> nn.Module: ...
    @property
    def optimizer(self) -> Optimizer: ...
    @property
    def fully_sharded(self) -> FullySharded | None: ...


def strategy(
    trained: Trained,
    shards: LogicalShards,
    ranks: Ranks,
    device: torch.device,
    *,
    seed: int,
    block_order: CheckedBlockOrder | None = None,
) -> OneProcess | ShardedUpdates:
    """Return the way to make the updates of the logical `shards`; several of them have no `block_order`."""
    if shards.count == 1:
        return OneProcess(trained.model, trained.optimizer, seed=seed, block_order=block_order)
    return ShardedUpdates(
        trained.model, trained.optimizer, shards, ranks, device, seed=seed, fully_sharded=trained.fully_sharded
    )
