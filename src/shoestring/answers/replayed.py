"""A replayed update: what is not finite first, then samples, microbatches, gradients and activations."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from shoestring.answers import wording
from shoestring.answers.document import Bar, Cell, Column, Document, Element, Paragraph, Section, Span, Table, Tone
from shoestring.base.streams import one_line
from shoestring.base.units import count_text, seconds_text
from shoestring.runs.replay.replayed import Replay

_ROWS = 12
_BAR = 0.8
"""The length of the longest bar: a remark follows it."""
_MOST_TEXT = 110
_MOST_NAME = 40


def document(replay: Replay) -> Document:
    """Return a replayed update."""
    title = f"{replay.recipe}: update {count_text(replay.update)}, epoch {replay.epoch}, from update "
    title += (
        f"{count_text(replay.from_checkpoint)} ({replay.device}, {replay.precision}, {seconds_text(replay.seconds)})"
    )
    rows = zip(replay.samples, replay.sample_descriptions, strict=True)
    norms = sorted(replay.gradient_norms.items(), key=lambda item: item[1], reverse=True)
    outputs = [
        (f"{row['module']} {row['type']}", row["value"], f"in {row['microbatch']}")
        for row in replay.largest_activations
    ]
    return Document(
        title=title,
        sentences=[Span(title, "strong")],
        content=[
            *_update(replay),
            *_weights(replay),
            *_not_finite(replay),
            *_table("samples", (), [(count_text(index), _short(text)) for index, text in rows]),
            *_table("microbatches", ("", "loss", "weight", "samples"), _microbatch_rows(replay)),
            *_table("largest gradient norms", (), _bars([(name, norm, "") for name, norm in norms])),
            *_table("largest activations, with the number of the microbatch", (), _bars(outputs)),
            *wording.note_lines(replay.notes),
        ],
    )


def _update(replay: Replay) -> Iterator[Element]:
    facts = {
        "loss": replay.loss,
        "gradient norm": replay.gradient_norm,
        "clipped to": replay.clip_norm,
        "learning rate": replay.learning_rate,
        "loss scale": replay.attempts[-1]["loss_scale"] if replay.attempts else None,
    }
    yield Paragraph(" · ".join(f"{name} {value:.6g}" for name, value in facts.items() if value is not None))
    for number, attempt in enumerate(replay.attempts[:-1], 1):
        scale = f" at loss scale {attempt['loss_scale']:g}" if attempt["loss_scale"] else ""
        yield Paragraph(f"attempt {number} with microbatch {attempt['micro_batch']}: {attempt['outcome']}{scale}")
    if replay.error:
        yield Paragraph(f"the update failed: {replay.error}", "bad")
    elif not replay.stepped:
        yield Paragraph("the optimizer made no step", "bad")


def _weights(replay: Replay) -> list[Element]:
    if replay.weights_sha256 is None:
        return []
    comparison = {
        None: "the run has no checkpoint of this update to compare with",
        True: "equal to the run's checkpoint of this update",
        False: "different from the run's checkpoint of this update",
    }[replay.equals_checkpoint]
    tone: Tone = "bad" if replay.equals_checkpoint is False else ""
    return [Paragraph(f"weights {replay.weights_sha256[:16]}: {comparison}", tone)]


def _not_finite(replay: Replay) -> list[Element]:
    rows = []
    for entry in replay.not_finite:
        place = [f"attempt {entry['attempt']}"] if len(replay.attempts) > 1 else []
        place += [f"microbatch {entry['microbatch']}"] if entry["microbatch"] is not None else []
        place += [f"samples {', '.join(map(count_text, entry['samples'][:_ROWS]))}"] if entry["samples"] else []
        share = f"{count_text(entry['count'])} of {count_text(entry['total'])}"
        rows.append((entry["kind"], _end_of(entry["name"]), share, "; ".join(place)))
    return _table("not finite, in this order", (), rows, "bad")


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


def _bars(rows: Iterable[tuple[str, float, str]]) -> list[tuple[Cell, ...]]:
    """Return rows of a name, a number, and a bar in proportion to the largest finite number."""
    rows = list(rows)
    finite = [value for _, value, _ in rows if abs(value) < float("inf")]
    largest = max(finite, default=0.0)
    return [
        (
            _end_of(name),
            f"{value:.4g}",
            Bar([_BAR * value / largest]) if value in finite and largest else "",
            remark,
        )
        for name, value, remark in rows
    ]


def _table(
    title: str, columns: tuple[str, ...], rows: Sequence[tuple[Cell, ...]], tone: Tone = "strong"
) -> list[Element]:
    """Return the title and a table of the first rows; nothing without rows."""
    if not rows:
        return []
    table = Table(list(map(Column, columns)) or [Column()] * len(rows[0]), rows[:_ROWS])
    omitted = [Paragraph(f"and {count_text(len(rows) - _ROWS)} more: --json has all of them")]
    return [Section(title, [table, *(omitted if len(rows) > _ROWS else [])], tone)]


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
