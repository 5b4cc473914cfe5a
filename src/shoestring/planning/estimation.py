"""The memory of given settings on each GPU of a target."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoestring.base import display
from shoestring.base.garbage import collection_paused
from shoestring.base.settings import Settings
from shoestring.base.units import bytes_text
from shoestring.hardware.catalog import Target
from shoestring.planning.candidates import candidate
from shoestring.planning.commands import plan_command
from shoestring.planning.estimate.memory import Breakdown
from shoestring.planning.estimate.phases import peak_tensor_bytes
from shoestring.planning.gpus import divide
from shoestring.planning.shares import samples_per_shard
from shoestring.planning.trace import Tracer
from shoestring.planning.trace.record import Facts
from shoestring.planning.untraced import hinting_at_training
from shoestring.planning.varying_lengths import with_lengths
from shoestring.planning.weight_type import precision_of_frozen_weights, with_weight_type
from shoestring.recipe.options import LoadedRecipe
from shoestring.recipe.whole_batch import require_whole_batch


@dataclass(frozen=True, kw_only=True)
class Estimate(display.Displayed):
    """A memory breakdown with the recipe, target and settings that it belongs to."""

    recipe: str
    target: Target
    """The target of `--on`."""
    settings: Settings
    """The settings that were given, and those that follow."""
    facts: Facts
    memory: Breakdown
    phases: Mapping[str, int]
    """The peak bytes of tensors in each phase of an update."""
    assumption: str = ""
    """What was assumed for settings that were left open, and what chooses them, if the update does not fit."""

    @property
    def peak_bytes(self) -> int:
        """The predicted peak of the device's memory in bytes, which is the sum of the parts."""
        return self.memory.peak_bytes

    @property
    def fits(self) -> bool:
        """Whether the upper bound of the memory fits each GPU of the target."""
        return self.memory.fits

    @property
    def notes(self) -> list[str]:
        """What was assumed for settings that were left open, and the recipe's notes on its data and its model."""
        return [note for note in (self.assumption, *self.facts.notes) if note]

    def json(self) -> dict[str, Any]:
        """Return the estimate as JSON; bytes are integers.

        Keys:
            parameters (object): the numbers of the model's parameters
        """
        return {
            "target": self.target.name,
            "settings": self.settings.json(),
            "parameters": {"total": self.facts.parameters_total, "trainable": self.facts.parameters_trainable},
            **self.memory.json(),
            "notes": self.notes,
        }

    def __repr__(self) -> str:
        fits = "fits" if self.fits else "does not fit"
        return f"<Estimate of {self.recipe} on {self.target.name}: {bytes_text(self.peak_bytes)}, {fits}>"

    def __str__(self) -> str:
        """Return the parts as `shoestring estimate` prints them."""
        return display.text(self)


def make_estimate(loaded: LoadedRecipe, target: Target, requested: Settings) -> Estimate:
    """Trace one update of `loaded` with the `requested` settings, by default divided among the target's GPUs.

    By default the microbatch is a logical shard of the effective batch, the precision is fp32, and no block is
    checkpointed. An update that is never split runs on one GPU.

    Raises UsageError for a microbatch that would split such an update, and TraceError if a training step of the model
    cannot be traced.
    """
    original = loaded
    loaded = with_weight_type(loaded, target, requested)
    require_whole_batch(loaded, requested)
    divided = divide(loaded, target, requested)
    settings = divided.replace(
        micro_batch=requested.micro_batch or samples_per_shard(loaded.effective_batch, divided),
        precision=requested.precision or precision_of_frozen_weights(loaded, target.device) or "fp32",
        checkpointing=requested.recomputed,
        memory_format=requested.memory_format or "contiguous",
    )
    if requested.micro_batch and requested.micro_batch > samples_per_shard(loaded.effective_batch, divided):
        loaded = loaded.replace(effective_batch=requested.micro_batch * (divided.logical_shards or 1))
    # The precision of frozen weights is theirs, which is no assumption.
    open_settings = {
        name: value
        for name, value in settings.json().items()
        if name in _OPEN and not getattr(requested, name) and (name != "precision" or value == "fp32")
    }
    command = plan_command(original, requested, target, {})
    with collection_paused(), hinting_at_training(loaded), Tracer(loaded) as tracer:
        traced = with_lengths(tracer, loaded, target, candidate(tracer, loaded, target, settings))
        facts = tracer.facts.with_bounds(traced.trace.bounds)
    return Estimate(
        recipe=loaded.name,
        target=target,
        settings=settings,
        facts=facts,
        memory=traced.memory,
        phases=peak_tensor_bytes(traced.trace),
        assumption="" if traced.memory.fits else _assumption(open_settings, command),
    )


_OPEN = ("micro_batch", "precision", "checkpointing")
"""The settings that decide most of the memory, and that a plan chooses if they are left open."""


def _assumption(values: Mapping[str, Any], command: str) -> str:
    """Return a sentence on these values of settings that were left open; empty without one."""
    if not values:
        return ""
    names = ", ".join(f"{name}={value}" for name, value in values.items())
    chooses = f"`{command}` chooses those with which it fits, if there are any" if command else "a plan chooses them"
    return f"{names} {'is' if len(values) == 1 else 'are'} assumed, because no value was set: {chooses}"
