"""How a session ended, and what to do next."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from shoestring.report.metrics import summary
from shoestring.units import count_text

if TYPE_CHECKING:
    from shoestring.train.loop import Outcome


def screen(outcome: "Outcome", recipe: str, run: Path) -> RenderableType:
    """Of the session that trained `recipe` in the directory `run`."""
    again = f"shoestring train {recipe} --run {run}"
    lines = [Text(f"{outcome.status}: {outcome.reason}", style="bold")]
    lines += [Text(f"{part}: {summary(metrics)}") for part, metrics in outcome.metrics.items()]
    done = f"update {count_text(outcome.update)} of {count_text(outcome.total_updates)}"
    if outcome.status == "finished":
        lines.append(Text(f"{done}; draw it: shoestring report {run}"))
    else:
        lines.append(Text(f"{done}; continue: {again}"))
    return Group(*lines)
