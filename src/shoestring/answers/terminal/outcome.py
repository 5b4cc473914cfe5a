"""The outcome of a training session in a terminal, and the command for the next step."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from shoestring.answers.metrics import comparison, summary
from shoestring.base.streams import one_line
from shoestring.base.units import count_text
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.stored import START_AGAIN

if TYPE_CHECKING:
    from shoestring.training.session.outcome import Outcome


_LABELS = {"validation": "validation, best epoch", "test": "test, weights of the best epoch"}


def screen(outcome: "Outcome", recipe: str, run: Path) -> RenderableType:
    """Show the outcome of the session that trained `recipe` in the directory `run`."""
    resume_command = one_line(shlex.join(["shoestring", "train", recipe, "--run", str(run)]))
    report_command = one_line(shlex.join(["shoestring", "report", str(run)]))
    lines = [Text(one_line(f"{outcome.status}: {outcome.reason}"), style="bold")]
    for part, metrics in outcome.metrics.items():
        lines.append(Text(f"{_LABELS.get(part, part)}: {summary(metrics)}"))
        lines += [Text(f"  {one_line(name)}: {summary(row)}") for name, row in comparison(metrics).items()]
    position = f"update {count_text(outcome.update)} of {count_text(outcome.total_updates)}"
    if outcome.status == "finished":
        lines.append(Text(f"{position}; create the report: {report_command}"))
    elif not RunDirectory(run).plan_file.exists():  # which has the options of the run
        lines.append(Text(START_AGAIN))
    else:
        lines.append(Text(f"{position}; continue: {resume_command}"))
    return Group(*lines)
