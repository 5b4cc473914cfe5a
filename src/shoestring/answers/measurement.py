"""A measurement of a run, and the content of its file before it is written."""

import shlex
from typing import Any

from shoestring.answers.document import Code, Column, Command, Document, Element, Paragraph, Section, Span, Table
from shoestring.answers.values import UNKNOWN, count, duration, size
from shoestring.base.reading import number
from shoestring.base.units import plural
from shoestring.runs.measurement.file import text_of
from shoestring.runs.measurement.measurement import Measurement

_COLUMNS = (
    Column(),
    Column("predicted", is_numeric=True),
    Column("range", is_numeric=True, least_width=70),
    Column("measured", is_numeric=True),
    Column("error", is_numeric=True),
)


def document(measurement: Measurement, run: str = "") -> Document:
    """Return the predicted values beside the measured ones, and the content of the file; `run` is its directory."""
    content = measurement.content
    predicted, measured, device = content["predicted"], content["measured"], content["device"]
    updates, session_count = plural(measured["updates"], "update"), plural(len(measured["sessions"]), "session")
    memory = [_row("peak memory", predicted["memory"], measured["memory_bytes"], size)]
    seconds = [_row("update", predicted["update"], measured["update"]["value"], duration)]
    name = f"{content['recipe']['name']} on {device['name']}"
    return Document(
        title=f"Measurement of {name}",
        subtitle=f"{content['date']} · {updates}",
        sentences=[Span(f"{name}, {content['date']}: {_state(measurement)}", "strong")],
        content=[
            Table(_COLUMNS, memory + seconds),
            Paragraph(
                f"{updates} in {session_count}; memory ran out {count(measured['out_of_memory'])} times; "
                f"torch {content['versions'].get('torch')}"
            ),
            *_next(measurement, run),
        ],
    )


def _state(measurement: Measurement) -> str:
    if measurement.checked:
        return f"{measurement.checked} is a measurement, and no value in it is impossible"
    return (
        f"written to {measurement.out}" if measurement.out else "this is the content of the file, which is not written"
    )


def _next(measurement: Measurement, run: str) -> list[Element]:
    if measurement.checked:
        return []
    if measurement.out:
        return [
            Paragraph("Add it to measurements/ in Shoestring's repository by a pull request (measurements/README.md).")
        ]
    return [
        Section("Content", [Code(text_of(measurement.content).rstrip())]),
        Paragraph("It names no path, no data and no host. To write it, type"),
        Command(shlex.join(["shoestring", "measured", run or "DIR", "--out", "measurement.json"])),
    ]


def _row(name: str, predicted: dict[str, Any], measured: float, text: Any) -> list[str]:
    value = number(predicted["value"])
    error = f"{value / measured - 1:+.1%}" if value is not None and measured else UNKNOWN
    limits = [predicted["low"], predicted["high"]]
    range_text = UNKNOWN if None in limits else " to ".join(map(text, limits))
    return [name, text(value), range_text, text(measured), error]
