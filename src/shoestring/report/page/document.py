"""The report page: one self-contained HTML file without scripts or network access."""

from importlib.resources import files
from pathlib import Path

from shoestring.checkpoint.files import replace
from shoestring.report.markup import Markup, element, join
from shoestring.report.page import sections
from shoestring.report.page.answers import answers
from shoestring.report.page.evidence import evidence
from shoestring.report.page.headline import headline
from shoestring.report.page.results import results
from shoestring.report.page.run import Run, read
from shoestring.session.directory import RunDirectory
from shoestring.session.ledger import sessions
from shoestring.system_errors import explaining

# The browser itself refuses to fetch resources and to run scripts.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write(path: Path) -> Path:
    """Write `report.html` into the run's directory `path`, from its plan, state and events, and return its path.

    The same files give the same page. Raises UsageError when `path` is not the directory of a run.
    """
    file, page = RunDirectory(path).report_file, render(read(path))
    # The replacement is atomic: reloading the page never shows half of it.
    with explaining(f"{file} could not be written", ", then create the report again"):
        # A path that is not UTF-8 contains characters that UTF-8 does not have.
        replace(file, lambda draft: draft.write_text(page, encoding="utf-8", errors="backslashreplace"))
    return file


def render(run: Run) -> Markup:
    """Render the page of `run`."""
    session_records = sessions(run.events, run.status)
    style = files("shoestring.report.page").joinpath("page.css").read_text(encoding="utf-8")
    head = join(
        [
            Markup('<meta charset="utf-8">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup('<link rel="icon" href="data:,">'),
            element("title", f"{run.name}: {run.status}"),
            element("style", Markup(style)),
        ]
    )
    body = element(
        "main",
        headline(run, session_records),
        results(run),
        evidence(run),
        answers(run),
        sections.training(run),
        sections.history(session_records),
        sections.time_breakdown(run),
        sections.gpus(run),
        sections.plan(run, session_records),
        sections.remarks(run),
        sections.colophon(run),
    )
    page = join([element("head", head), element("body", body)])
    return join([Markup("<!DOCTYPE html>\n"), element("html", page, lang="en")])
