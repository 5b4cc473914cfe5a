"""The metrics of saved weights in a terminal."""

from rich.console import Group, RenderableType
from rich.text import Text

from shoestring.answers.metrics import summary
from shoestring.base.streams import message_text, one_line
from shoestring.base.units import count_text, seconds_text
from shoestring.runs.evaluate import Evaluation


def screen(evaluation: Evaluation) -> RenderableType:
    """Show the evaluated weights, a line for each part of the data, and notes on differences from the run."""
    update = "" if evaluation.update is None else f" of update {count_text(evaluation.update)}"
    environment = f"{evaluation.device}, {evaluation.precision}, {seconds_text(evaluation.seconds)}"
    weights = one_line(f"{evaluation.recipe}: the weights{update} in {evaluation.weights}")
    lines = [Text(f"{weights} ({environment})", style="bold")]
    lines += [Text(f"{part}: {summary(metrics)}") for part, metrics in evaluation.metrics.items()]
    if evaluation.out:
        lines.append(Text(one_line(f"rows: {evaluation.out}")))
    return Group(*lines, *(Text(message_text(note), style="yellow") for note in evaluation.notes))
