"""Texts and elements that several answers share."""

from collections.abc import Mapping, Sequence
from typing import Any

from shoestring.answers.document import Breakdown, Fact, Inline, Items, KeyFigure, Labels, Paragraph, Part, Span
from shoestring.base.settings import Settings
from shoestring.base.units import bytes_text, count_text, parameters_text
from shoestring.hardware.catalog import Target
from shoestring.planning.estimate.memory import Breakdown as Memory
from shoestring.planning.estimate.memory import MemoryPart
from shoestring.planning.limits import Limit
from shoestring.planning.trace.record import Facts


def heading(recipe: str, target: Target, facts: Facts) -> Inline:
    """Return what is asked about, a recipe on a target, as a sentence."""
    device = f"{target.device.title}, {bytes_text(target.device.memory_bytes)}"
    return [Span(recipe, "strong"), " on ", Span(target.name, "strong"), f" ({device}) · {model_text(facts)}"]


def settings(values: Mapping[str, Any], remark: str = "") -> Labels:
    """Return microbatch and precision, and what else decides memory where it is not the default."""
    pairs = notable_settings(values)
    return Labels([("" if name == "precision" else name, str(value)) for name, value in pairs], remark)


def settings_text(values: Mapping[str, Any]) -> str:
    """Return the same as a text."""
    return " · ".join(f"{name} {value}" if name else value for name, value in settings(values).pairs)


def memory(memory: Memory, parts: Sequence[MemoryPart] | None = None, *, figure: KeyFigure | None = None) -> Fact:
    """Return the predicted peak of the memory and its parts, by default all of them, the largest first."""
    breakdown = Breakdown(
        parts=[Part(part.name, part.bytes, part.source) for part in parts or largest_first(memory)],
        low=memory.low_bytes,
        high=memory.high_bytes,
        capacity=memory.capacity_bytes,
    )
    return Fact("memory", [Paragraph(memory_text(memory), figure=figure), breakdown])


def largest_first(memory: Memory) -> list[MemoryPart]:
    """Return the parts of the memory, the largest first."""
    return sorted(memory.parts, key=lambda part: -part.bytes)


def notes(texts: Sequence[str]) -> list[Fact]:
    """Return a fact with notes, if there are any."""
    return [Fact("notes", [Items(texts)], is_folded=True)] if texts else []


def all_notes(target: Target, facts: Facts) -> list[str]:
    """Return the notes about the data, after what is assumed about a GPU that is not in the catalogue."""
    return [*([] if target.platform else target.notes), *facts.notes]


def note_lines(texts: Sequence[str]) -> list[Paragraph]:
    """Return a line for each note."""
    return [Paragraph(text, "note") for text in texts]


def weights(update: int | None, path: str) -> str:
    """Return the path of saved weights and the update that made them."""
    return path if update is None else f"{path}, update {count_text(update)}"


def memory_text(memory: Memory) -> str:
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
    plain = Settings(
        checkpointing="no",
        memory_format="contiguous",
        streamed_blocks=0,
        stream_order="microbatch",
        allocator="segments",
        gpus=1,
        sharding="ddp",
    ).json()
    plain["logical_shards"] = settings.get("gpus") or 1
    shared = ("gpus", "sharding", "logical_shards")
    names = (
        *(*shared, "checkpointing", "optimizer_kernel", "memory_format", "offload"),
        *("streamed_blocks", "stream_order", "stream_group", "allocator", "cudnn_benchmark", "tf32"),
    )
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
