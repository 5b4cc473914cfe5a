"""Metrics of saved weights as a person reads them in a terminal."""

from rich.console import Group, RenderableType
from rich.text import Text

from shoestring.report.metrics import summary
from shoestring.runs.evaluate import Evaluated
from shoestring.units import count_text, seconds_text


def screen(evaluated: Evaluated) -> RenderableType:
    """What was evaluated, a line for each part of the data, and what is not as in the run."""
    at = "" if evaluated.update is None else f" of update {count_text(evaluated.update)}"
    how = f"{evaluated.device}, {evaluated.precision}, {seconds_text(evaluated.seconds)}"
    lines = [Text(f"{evaluated.recipe}: the weights{at} in {evaluated.weights} ({how})", style="bold")]
    lines += [Text(f"{part}: {summary(metrics)}") for part, metrics in evaluated.metrics.items()]
    return Group(*lines, *(Text(note, style="yellow") for note in evaluated.notes))
