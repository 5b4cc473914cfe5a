"""The page that compares several runs."""

from collections.abc import Sequence
from pathlib import Path

from shoestring.answers.compare import curves, tables
from shoestring.answers.compare.compared import ComparedRun, read_runs
from shoestring.answers.renderers.markup import EMPTY, Markup, element, join
from shoestring.answers.renderers.page.output import html, require_output, write_page
from shoestring.answers.report.sections import figure
from shoestring.answers.values import words
from shoestring.base.units import plural

_METRIC_FIGURES = 8


def write(paths: Sequence[Path], file: Path) -> Path:
    """Write the comparison of the runs in the directories `paths` to `file`, and return it.

    Raises UsageError when one of them is not the directory of a run or is given twice, or when `file` must not be
    written (`renderers/page/output.py`).
    """
    runs = read_runs(paths)
    require_output(file, paths)
    write_page(file, render(runs), ", then create the report again")
    return file


def render(runs: Sequence[ComparedRun]) -> Markup:
    """Render the comparison of `runs`."""
    recipes = list(dict.fromkeys(compared.run.name for compared in runs))
    title = f"{plural(len(runs), 'run')} of {' and '.join(recipes)}"
    body = element(
        "main",
        element("header", element("h1", title), *_notes(runs, recipes)),
        tables.overview(runs),
        tables.differences(runs),
        tables.metrics(runs),
        _training(runs),
        tables.resources(runs),
        _problems(runs),
        element("footer", "Sources: ", ", ".join(str(compared.run.path) for compared in runs)),
    )
    return html(title, body)


def _notes(runs: Sequence[ComparedRun], recipes: list[str]) -> list[Markup]:
    notes = []
    if len(recipes) > 1:
        notes.append(
            "The runs are of different recipes: only metrics that all of them have are compared, and what has the "
            "same name may have different definitions."
        )
    unfinished = [compared.name for compared in runs if compared.run.status != "finished"]
    if unfinished:
        notes.append(f"Not finished: {', '.join(unfinished)}.")
    return [element("p", note) for note in notes]


def _training(runs: Sequence[ComparedRun]) -> Markup:
    names, omitted = curves.common_metrics(runs)
    if not any(compared.run.events_of("progress") for compared in runs):
        return join([element("h2", "Training"), element("p", "No progress has been recorded yet.", class_="muted")])
    missing = f"Not drawn, since not all runs have them: {', '.join(map(words, omitted))}." if omitted else ""
    drawn_names = names[:_METRIC_FIGURES]
    metrics = [figure(words(name), "On validation data", curves.metric(runs, name)) for name in drawn_names]
    time = curves.loss_over_time(runs)
    return join(
        [
            element("h2", "Training"),
            figure("Loss in training", "Means of neighbouring updates.", curves.training_loss(runs), class_="wide"),
            figure("Loss on validation data", "", curves.validation_loss(runs), class_="wide"),
            figure("Loss over time", "Of the sessions; pauses between them do not count.", time, class_="wide"),
            element("div", metrics, class_="figures"),
            element("p", missing, class_="muted") if missing else EMPTY,
        ]
    )


def _problems(runs: Sequence[ComparedRun]) -> Markup:
    """Render the files that cannot be read."""
    problems = [f"{compared.name}: {problem}" for compared in runs for problem in compared.run.problems]
    if not problems:
        return EMPTY
    return join([element("h2", "Remarks"), element("ul", [element("li", problem) for problem in problems])])
