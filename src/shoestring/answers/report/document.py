"""The report of a run as a document, and as a page: one self-contained HTML file without scripts or network access."""

from pathlib import Path

from shoestring.answers.document import Document
from shoestring.answers.page_file import require_output, write_page
from shoestring.answers.renderers.page.document import render
from shoestring.answers.report import sections
from shoestring.answers.report.answers import answers
from shoestring.answers.report.evidence import evidence
from shoestring.answers.report.headline import headline
from shoestring.answers.report.results import results
from shoestring.answers.report.run import Run, read
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.session.ledger import sessions


def write(path: Path, out: Path | None = None) -> Path:
    """Write the report of the run in the directory `path` to the file `out`, by default to `report.html` in it.

    Returns the path of the page. The same files give the same page. Raises UsageError when `path` is not the directory
    of a run, or when `out` must not be written (`answers/page_file.py`).
    """
    file, page = out or RunDirectory(path).report_file, render(document(read(path)))
    if out:
        require_output(out, [path])
    write_page(file, page, ", then create the report again")
    return file


def document(run: Run) -> Document:
    """Return the report of `run`."""
    session_records = sessions(run.events, run.status)
    return Document(
        title=run.name,
        status=run.status,
        content=[
            *headline(run, session_records),
            *results(run),
            *evidence(run),
            *answers(run),
            sections.training(run),
            *sections.history(session_records),
            *sections.time_breakdown(run),
            *sections.gpus(run),
            sections.plan(run, session_records),
            *sections.remarks(run),
        ],
        footer=sections.colophon(run),
    )
