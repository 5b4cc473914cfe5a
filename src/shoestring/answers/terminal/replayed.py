"""A replayed update in a terminal: what is not finite first, then samples, microbatches, gradients and activations."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shoestring.base.streams import message_text, one_line
from shoestring.base.units import count_text, seconds_text
from shoestring.runs.replay.replayed import Replay

_ROWS = 12
_BAR = 24
_MOST_TEXT = 110
_MOST_NAME = 40


def screen(replay: Replay) -> RenderableType:
    """Show a replayed update."""
    parts: list[RenderableType] = [*_header(replay), *_not_finite(replay)]
    rows = zip(replay.samples, replay.sample_descriptions, strict=True)
    parts += _table("samples", (), [(count_text(index), _short(text)) for index, text in rows])
    parts += _table("microbatches", ("", "loss", "weight", "samples"), _microbatch_rows(replay))
    norms = sorted(replay.gradient_norms.items(), key=lambda item: item[1], reverse=True)
    parts += _table("largest gradient norms", (), _bars([(name, norm, "") for name, norm in norms]))
    outputs = [
        (f"{row['module']} {row['type']}", row["value"], f"in {row['microbatch']}")
        for row in replay.largest_activations
    ]
    parts += _table("largest activations, with the number of the microbatch", (), _bars(outputs))
    return Group(*parts, *(Text(message_text(note), style="yellow") for note in replay.notes))


def _header(replay: Replay) -> list[RenderableType]:
    environment = f"{replay.device}, {replay.precision}, {seconds_text(replay.seconds)}"
    source = f"from update {count_text(replay.from_checkpoint)}"
    title = one_line(
        f"{replay.recipe}: update {count_text(replay.update)}, epoch {replay.epoch}, {source} ({environment})"
    )
    facts = {
        "loss": replay.loss,
        "gradient norm": replay.gradient_norm,
        "clipped to": replay.clip_norm,
        "learning rate": replay.learning_rate,
        "loss scale": replay.attempts[-1]["loss_scale"] if replay.attempts else None,
    }
    line = " · ".join(f"{name} {value:.6g}" for name, value in facts.items() if value is not None)
    lines: list[RenderableType] = [Text(title, style="bold"), Text(line)]
    lines += [
        Text(
            f"attempt {number} with microbatch {attempt['micro_batch']}: {attempt['outcome']}"
            + (f" at loss scale {attempt['loss_scale']:g}" if attempt["loss_scale"] else "")
        )
        for number, attempt in enumerate(replay.attempts[:-1], 1)
    ]
    if replay.error:
        lines.append(Text(message_text(f"the update failed: {replay.error}"), style="bold red"))
    elif not replay.stepped:
        lines.append(Text("the optimizer made no step", style="bold red"))
    return [*lines, *_weights(replay)]


def _weights(replay: Replay) -> list[RenderableType]:
    if replay.weights_sha256 is None:
        return []
    comparison = {
        None: "the run has no checkpoint of this update to compare with",
        True: "equal to the run's checkpoint of this update",
        False: "different from the run's checkpoint of this update",
    }[replay.equals_checkpoint]
    style = "bold red" if replay.equals_checkpoint is False else ""
    return [Text(f"weights {replay.weights_sha256[:16]}: {comparison}", style=style)]


def _not_finite(replay: Replay) -> list[RenderableType]:
    rows = []
    for entry in replay.not_finite:
        place = [f"attempt {entry['attempt']}"] if len(replay.attempts) > 1 else []
        place += [f"microbatch {entry['microbatch']}"] if entry["microbatch"] is not None else []
        place += [f"samples {', '.join(map(count_text, entry['samples'][:_ROWS]))}"] if entry["samples"] else []
        share = f"{count_text(entry['count'])} of {count_text(entry['total'])}"
        rows.append((entry["kind"], _end_of(entry["name"]), share, "; ".join(place)))
    return _table("not finite, in this order", (), rows, style="bold red")


def _microbatch_rows(replay: Replay) -> list[tuple[str, ...]]:
    return [
        (
            str(number),
            f"{microbatch['loss']:.6g}",
            f"{microbatch['weight']:g}",
            "unknown" if microbatch["samples"] is None else _short(" ".join(map(str, microbatch["samples"]))),
        )
        for number, microbatch in enumerate(replay.microbatches)
    ]


def _bars(rows: Iterable[tuple[str, float, str]]) -> list[tuple[str, ...]]:
    """Return rows of a name, a number, and a bar in proportion to the largest finite number."""
    rows = list(rows)
    finite = [value for _, value, _ in rows if abs(value) < float("inf")]
    largest = max(finite, default=0.0)

    def bar(value: float) -> str:
        return "█" * max(1, round(_BAR * value / largest)) if value in finite and largest else ""

    return [(_end_of(name), f"{value:.4g}", bar(value), remark) for name, value, remark in rows]


def _table(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], style: str = "bold") -> list[Any]:
    """Return the title and a table of the first rows; nothing without rows."""
    if not rows:
        return []
    table = Table.grid(padding=(0, 2))
    for _ in rows[0]:
        table.add_column(overflow="fold")
    for row in [columns, *rows[:_ROWS]] if columns else rows[:_ROWS]:
        table.add_row(*(Text(cell) for cell in row))
    omitted = [Text(f"and {count_text(len(rows) - _ROWS)} more: --json has all of them")] if len(rows) > _ROWS else []
    return [Text(""), Text(title, style=style), table, *omitted]


def _short(value: Any) -> str:
    if isinstance(value, dict):
        value = " · ".join(f"{name} {_text(part)}" for name, part in value.items())
    text = one_line(_text(value))
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]} …"


def _end_of(name: str) -> str:
    """Return the end of a long name, which says more than its beginning."""
    name = one_line(name)
    return name if len(name) <= _MOST_NAME else f"…{name[-_MOST_NAME:]}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
