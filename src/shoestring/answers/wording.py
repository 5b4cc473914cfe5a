"""Texts shared by the terminal and the notebook."""

from collections.abc import Mapping
from typing import Any

from shoestring.base.settings import Settings
from shoestring.base.units import bytes_text, parameters_text
from shoestring.hardware.catalog import Target
from shoestring.planning.estimate.memory import Breakdown
from shoestring.planning.limits import Limit
from shoestring.planning.trace.record import Facts


def memory_text(memory: Breakdown) -> str:
    """Describe the predicted peak, its range and the capacity, and whether the model fits before the first update."""
    loads = memory.loading_bytes <= memory.capacity_bytes
    return (
        f"{bytes_text(memory.peak_bytes)} at the peak, between {bytes_text(memory.low_bytes)} and "
        f"{bytes_text(memory.high_bytes)}, of {bytes_text(memory.capacity_bytes)}"
        + ("" if loads else f"; loading the model alone takes {bytes_text(memory.loading_bytes)}")
    )


def limit_text(limit: Limit) -> str:
    """Describe what the run needs and what is available."""
    return f"{limit.text(limit.needs)} of {limit.text(limit.has)}"


def notable_settings(settings: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return microbatch and precision, and what else decides memory where it is not the default."""
    plain = Settings(checkpointing="no", memory_format="contiguous", gpus=1, sharding="ddp").json()
    plain["logical_shards"] = settings.get("gpus") or 1
    shared = ("gpus", "sharding", "logical_shards")
    names = (*shared, "checkpointing", "optimizer_kernel", "memory_format", "offload", "allocator", "cudnn_benchmark")
    changed = [(name, settings[name]) for name in names if settings.get(name) not in (None, plain[name])]
    return [("micro_batch", settings["micro_batch"]), ("precision", settings["precision"]), *changed]


def device_text(target: Target, facts: Facts) -> str:
    """Describe the device of a target and the size of the model."""
    device = target.device
    return f"{device.title}, {bytes_text(device.memory_bytes)} \N{MIDDLE DOT} {model_text(facts)}"


def model_text(facts: Facts) -> str:
    """Write the number of a model's parameters, how many of them are trained if that is not all, and which parts begin
    with random weights.
    """
    untrained = f"; not pretrained: {', '.join(facts.random_parts)}" if facts.random_parts else ""
    return f"{parameters_text(facts.parameters_total, facts.parameters_trainable)}{untrained}"
