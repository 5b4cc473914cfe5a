"""The page of a cross-validation: the metrics of its folds with their mean and spread, and how each was trained."""

from collections.abc import Sequence
from pathlib import Path

from shoestring.answers import cross_validation
from shoestring.answers.compare import document as comparison
from shoestring.answers.compare.compared import read_runs
from shoestring.answers.document import Document
from shoestring.answers.page_file import require_output, write_page
from shoestring.answers.renderers.page.document import render
from shoestring.runs.folds.outcome import metrics_of_folds


def write(folder: Path, paths: Sequence[Path], out: Path | None) -> Path:
    """Write the page of the folds at `paths` to `out`, by default to `report.html` in their folder, and return it.

    Raises UsageError as the page of a comparison does.
    """
    file = out or folder / "report.html"
    require_output(file, paths)
    write_page(file, render(document(paths)), ", then create the report again")
    return file


def document(paths: Sequence[Path]) -> Document:
    """Return the comparison of the folds, with their metrics first."""
    runs = read_runs(paths)
    page = comparison.document(runs)
    finished = [compared.run.state.get("metrics") or {} for compared in runs if compared.run.status == "finished"]
    return Document(
        title=f"{len(runs)} folds of {runs[0].run.name}",
        content=[cross_validation.section(metrics_of_folds(finished), len(runs)), *page.content],
        footer=page.footer,
    )
