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
from shoestring.units import bytes_text, count_text, seconds_text

if TYPE_CHECKING:
    from shoestring.plan.estimate import Estimate
    from shoestring.plan.plan import Plan
    from shoestring.train.loop import Outcome

_BAR = 30


def plan(found: "Plan") -> RenderableType:
    """A plan on one screen: the verdict first, then what it rests on."""
    facts = _grid()
    settings = found.settings
    facts.add_row("settings", _settings_text(settings.json()))
    facts.add_row("", _effective_batch(found))
    facts.add_row("memory", _memory_text(found.memory))
    facts.add_row("", _memory_bars(found.memory))
    facts.add_row("time", _time_text(found))
    facts.add_row("sessions", _sessions_text(found))
    facts.add_row("disk", _disk_text(found))
    facts.add_row("because", Text("\n".join(found.reasons)))
    if found.alternatives:
        facts.add_row("or", Text("\n".join(map(_alternative_text, found.alternatives))))
    return Group(
        _headline(found.recipe, found.target, found.facts),
        Text(found.verdict, style="bold green" if found.fits else "bold red"),
        facts,
    )


def estimate(found: "Estimate") -> RenderableType:
    """The memory of given settings as its parts."""
    settings = found.settings
    facts = _grid()
    facts.add_row("settings", _settings_text(settings.json()))
    facts.add_row("memory", _memory_text(found.memory))
    facts.add_row("", _memory_bars(found.memory))
    facts.add_row("tensors in", " · ".join(f"{name} {bytes_text(size)}" for name, size in found.phases.items()))
    fits = found.memory.fits
    return Group(
        _headline(found.recipe, found.target, found.facts),
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
    table = _grid()
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


def _headline(recipe: str, target: Target, facts: Facts) -> Text:
    device = f"{target.device.title}, {bytes_text(target.device.memory_bytes)}"
    return Text.assemble(
        (recipe, "bold"),
        " on ",
        (target.name, "bold"),
        f" ({device}) · {count_text(facts.parameters_total)} parameters",
    )


def _settings_text(settings: Mapping[str, Any]) -> str:
    """Microbatch and precision, and what else decides memory where it is not the default."""
    plain = Settings(checkpointing="no").json()
    names = ("checkpointing", "optimizer_kernel", "offload", "sharding", "allocator", "cudnn_benchmark")
    others = [f"{name} {settings[name]}" for name in names if settings[name] not in (None, plain[name])]
    return " · ".join([f"micro_batch {settings['micro_batch']}", str(settings["precision"]), *others])


def _effective_batch(found: "Plan") -> str:
    size = found.options["effective_batch"]
    pieces = -(-size // (found.settings.micro_batch or size))
    return f"{pieces} {'microbatch makes' if pieces == 1 else 'microbatches make'} the effective batch of {size}"


def _memory_text(memory: Breakdown) -> str:
    return (
        f"{bytes_text(memory.peak_bytes)} at the peak, between {bytes_text(memory.low_bytes)} and "
        f"{bytes_text(memory.high_bytes)}, of {bytes_text(memory.capacity_bytes)}"
    )


def _memory_bars(memory: Breakdown) -> RenderableType:
    largest = max(part.bytes for part in memory.parts)
    table = _grid()
    for part in sorted(memory.parts, key=lambda part: -part.bytes):
        table.add_row(part.name, Text(bytes_text(part.bytes), justify="right"), _bar(part.bytes / largest))
    return table


def _bar(share: float) -> Text:
    """A bar of at most `_BAR` cells in eighths of a cell."""
    eighths = max(1, round(share * _BAR * 8))
    return Text("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip(), style="cyan")


def _time_text(found: "Plan") -> str:
    predicted, low, high = found.time.predicted, found.time.low, found.time.high
    if predicted.update_seconds is None:
        return "unknown"
    text = f"{seconds_text(predicted.update_seconds)} an update"
    if predicted.epoch_seconds is None or predicted.total_seconds is None:
        return text
    assert low.total_seconds is not None and high.total_seconds is not None
    return (
        f"{text} · {seconds_text(predicted.epoch_seconds)} an epoch · {seconds_text(predicted.total_seconds)} in all "
        f"(between {seconds_text(low.total_seconds)} and {seconds_text(high.total_seconds)})"
    )


def _sessions_text(found: "Plan") -> str:
    if not found.sessions:
        return "–"
    platform = found.target.platform
    limit = f" of at most {platform.session_hours:g} h" if platform and platform.session_hours else ""
    hours = sum(session.hours for session in found.sessions)
    return f"{len(found.sessions)}{limit}, {seconds_text(hours * 3600)} with starting and stopping"


def _disk_text(found: "Plan") -> str:
    limit = f" of {bytes_text(found.disk.limit_bytes)}" if found.disk.limit_bytes else ""
    return (
        f"{bytes_text(found.disk.peak_bytes)}{limit} at its fullest; "
        f"{bytes_text(found.disk.full_checkpoint_bytes)} a full checkpoint"
    )


def _alternative_text(other: Any) -> str:
    settings = other["settings"]
    fits = "" if other["fits"] else ", does not fit"
    time = f", {seconds_text(other['update_seconds'])} an update" if other["update_seconds"] else ""
    return f"{_settings_text(settings)}: {bytes_text(other['peak_bytes'])}{time}{fits}"


def _grid(columns: Iterable[str] = ()) -> Table:
    return Table.grid(*columns, padding=(0, 2))
