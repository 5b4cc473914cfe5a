"""The page: one HTML file that needs nothing beside it, neither a script nor a network."""

from importlib.resources import files
from pathlib import Path

from shoestring.report.markup import Markup, element, join
from shoestring.report.page import sections
from shoestring.report.page.headline import headline
from shoestring.report.page.results import results
from shoestring.report.page.run import Run, read
from shoestring.session.directory import RunDirectory
from shoestring.session.ledger import sessions

# The browser itself refuses whatever would be fetched or run.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write(path: Path) -> Path:
    """Write `report.html` into the run's directory `path`, from its plan, state and events, and return where it is.

    The same files give the same page. Raises UsageError where `path` is no run's directory.
    """
    # Whoever has the page open never reloads half of one.
    draft = path / "report.html.part"
    draft.write_text(html(read(path)), encoding="utf-8")
    return draft.replace(RunDirectory(path).report_file)


def html(run: Run) -> Markup:
    """The page of `run`."""
    found = sessions(run.events, run.status)
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
        headline(run, found),
        results(run),
        sections.training(run),
        sections.history(found),
        sections.bound(run),
        sections.plan(run, found),
        sections.remarks(run),
        sections.colophon(run),
    )
    page = join([element("head", head), element("body", body)])
    return join([Markup("<!DOCTYPE html>\n"), element("html", page, lang="en")])
