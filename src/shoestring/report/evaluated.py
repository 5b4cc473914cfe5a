"""Metrics of saved weights as a person reads them in a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from shoestring.report.metrics import summary
from shoestring.units import count_text, seconds_text


def page(found: Mapping[str, Any]) -> RenderableType:
    """What was evaluated, a line for each part of the data, and what is not as in the run; `found` as its JSON."""
    at = "" if found["update"] is None else f" of update {count_text(found['update'])}"
    how = f"{found['device']}, {found['precision']}, {seconds_text(found['seconds'])}"
    lines = [Text(f"{found['recipe']}: the weights{at} in {found['weights']} ({how})", style="bold")]
    lines += [Text(f"{part}: {summary(metrics)}") for part, metrics in found["metrics"].items()]
    notes: Sequence[str] = found["notes"]
    return Group(*lines, *(Text(note, style="yellow") for note in notes))
