"""Answers as a person reads them in a terminal: what is compared is a bar, what is looked up a table."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shoestring import config
from shoestring.estimate.memory import Breakdown
from shoestring.hardware.catalog import Target
from shoestring.report.metrics import summary
from shoestring.settings import Settings
from shoestring.trace.record import Facts
from shoestring.units import bytes_text, count_text

if TYPE_CHECKING:
    from shoestring.plan.estimate import Estimate
    from shoestring.train.loop import Outcome

_BAR = 30


def estimate(found: "Estimate") -> RenderableType:
    """The memory of given settings as its parts."""
    settings = found.settings
    facts = grid()
    facts.add_row("settings", settings_text(settings.json()))
    facts.add_row("memory", memory_text(found.memory))
    facts.add_row("", memory_bars(found.memory))
    facts.add_row("tensors in", " · ".join(f"{name} {bytes_text(size)}" for name, size in found.phases.items()))
    fits = found.memory.fits
    return Group(
        headline(found.recipe, found.target, found.facts),
        Text("fits" if fits else "does not fit", style="bold green" if fits else "bold red"),
        facts,
    )


def targets(known: Sequence[Target]) -> RenderableType:
    """What there is to run on."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("target", "device", "memory", "precisions", "session", "a week", "disk"):
        table.add_column(name)
    for target in known:
        platform = target.platform
        table.add_row(
            target.name,
            f"{target.gpus} x {target.device.title}" if target.gpus > 1 else target.device.title,
            bytes_text(target.device.memory_bytes),
            " ".join(target.device.precisions),
            f"{platform.session_hours:g} h" if platform and platform.session_hours else "–",
            f"{platform.weekly_gpu_hours:g} h" if platform and platform.weekly_gpu_hours else "–",
            bytes_text(platform.disk_bytes) if platform and platform.disk_bytes else "–",
        )
    return table


def recipes(found: Sequence[dict[str, Any]]) -> RenderableType:
    """What can be trained, and what can be set: of each recipe its own options, then those of any, then settings."""
    shared = {option["name"]: option for recipe in found for option in recipe["options"] if not option["own"]}
    settings = [
        {"name": field.name, "default": field.default, "help": field.help, "expected": field.expected()}
        for field in config.fields(Settings).values()
    ]
    parts: list[RenderableType] = []
    for recipe in found:
        own = [option for option in recipe["options"] if option["own"]]
        parts += [Text.assemble((recipe["name"], "bold"), "  ", recipe["summary"]), _choices(own)]
    parts += [Text("any recipe", style="bold"), _choices(shared.values())]
    parts += [Text("settings, which do not change what is learnt", style="bold"), _choices(settings)]
    parts.append(Text("a recipe of your own: path/to/file.py with model(), batch(size), loss(model, batch) and data()"))
    return Group(*parts)


def _choices(options: Iterable[Mapping[str, Any]]) -> Table:
    table = grid()
    for option in options:
        default = "" if option["default"] is None else option["default"]
        table.add_row(f"  {option['name']}={default}", f"{option['help']} ({option['expected']})")
    return table


def outcome(found: "Outcome", recipe: str, run: Path) -> RenderableType:
    """How a session ended, and what to do next."""
    again = f"shoestring train {recipe} --run {run}"
    lines = [Text(f"{found.status}: {found.reason}", style="bold")]
    lines += [Text(f"{part}: {summary(metrics)}") for part, metrics in found.metrics.items()]
    done = f"update {count_text(found.update)} of {count_text(found.total_updates)}"
    if found.status == "finished":
        lines.append(Text(f"{done}; draw it: shoestring report {run}"))
    else:
        lines.append(Text(f"{done}; continue: {again}"))
    return Group(*lines)


def headline(recipe: str, target: Target, facts: Facts) -> Text:
    device = f"{target.device.title}, {bytes_text(target.device.memory_bytes)}"
    return Text.assemble(
        (recipe, "bold"),
        " on ",
        (target.name, "bold"),
        f" ({device}) · {count_text(facts.parameters_total)} parameters",
    )


def settings_text(settings: Mapping[str, Any]) -> str:
    """Microbatch and precision, and what else decides memory where it is not the default."""
    plain = Settings(checkpointing="no").json()
    names = ("checkpointing", "optimizer_kernel", "offload", "sharding", "allocator", "cudnn_benchmark")
    others = [f"{name} {settings[name]}" for name in names if settings[name] not in (None, plain[name])]
    return " · ".join([f"micro_batch {settings['micro_batch']}", str(settings["precision"]), *others])


def memory_text(memory: Breakdown) -> str:
    return (
        f"{bytes_text(memory.peak_bytes)} at the peak, between {bytes_text(memory.low_bytes)} and "
        f"{bytes_text(memory.high_bytes)}, of {bytes_text(memory.capacity_bytes)}"
    )


def memory_bars(memory: Breakdown) -> RenderableType:
    largest = max(part.bytes for part in memory.parts)
    table = grid()
    for part in sorted(memory.parts, key=lambda part: -part.bytes):
        table.add_row(part.name, Text(bytes_text(part.bytes), justify="right"), bar(part.bytes / largest))
    return table


def bar(share: float) -> Text:
    """A bar of at most `_BAR` cells in eighths of a cell."""
    eighths = max(1, round(share * _BAR * 8))
    return Text("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip(), style="cyan")


def grid(columns: Iterable[str] = ()) -> Table:
    return Table.grid(*columns, padding=(0, 2))
