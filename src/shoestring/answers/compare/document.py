"""The page that compares several runs."""

from collections.abc import Sequence
from pathlib import Path

from shoestring.answers.compare import curves, tables
from shoestring.answers.compare.compared import ComparedRun, read_runs
from shoestring.answers.document import Document, Element, Items, Paragraph, Row, Section
from shoestring.answers.page_file import require_output, write_page
from shoestring.answers.renderers.page.document import render
from shoestring.answers.values import words
from shoestring.base.units import plural

_METRIC_FIGURES = 8


def write(paths: Sequence[Path], file: Path) -> Path:
    """Write the comparison of the runs in the directories `paths` to `file`, and return it.

    Raises UsageError when one of them is not the directory of a run or is given twice, or when `file` must not be
    written (`answers/page_file.py`).
    """
    runs = read_runs(paths)
    require_output(file, paths)
    write_page(file, render(document(runs)), ", then create the report again")
    return file


def document(runs: Sequence[ComparedRun]) -> Document:
    """Return the comparison of `runs`."""
    recipes = list(dict.fromkeys(compared.run.name for compared in runs))
    return Document(
        title=f"{plural(len(runs), 'run')} of {' and '.join(recipes)}",
        content=[
            *_notes(runs, recipes),
            tables.overview(runs),
            tables.differences(runs),
            *tables.metrics(runs),
            _training(runs),
            tables.resources(runs),
            *_problems(runs),
        ],
        footer=f"Sources: {', '.join(str(compared.run.path) for compared in runs)}",
    )


def _notes(runs: Sequence[ComparedRun], recipes: list[str]) -> list[Paragraph]:
    notes = []
    if len(recipes) > 1:
        notes.append(
            "The runs are of different recipes: only metrics that all of them have are compared, and what has the "
            "same name may have different definitions."
        )
    unfinished = [compared.name for compared in runs if compared.run.status != "finished"]
    if unfinished:
        notes.append(f"Not finished: {', '.join(unfinished)}.")
    return list(map(Paragraph, notes))


def _training(runs: Sequence[ComparedRun]) -> Section:
    names, omitted = curves.common_metrics(runs)
    if not any(compared.run.events_of("progress") for compared in runs):
        return Section("Training", [Paragraph("No progress has been recorded yet.", "faint")])
    missing = f"Not drawn, since not all runs have them: {', '.join(map(words, omitted))}."
    content: list[Element] = [
        curves.training_loss(runs),
        curves.validation_loss(runs),
        curves.loss_over_time(runs),
        Row([curves.metric(runs, name) for name in names[:_METRIC_FIGURES]]),
    ]
    return Section("Training", [*content, *([Paragraph(missing, "faint")] if omitted else [])])


def _problems(runs: Sequence[ComparedRun]) -> list[Section]:
    """Return the files that cannot be read."""
    problems = [f"{compared.name}: {problem}" for compared in runs for problem in compared.run.problems]
    return [Section("Remarks", [Items(problems)])] if problems else []
