"""Looking at a run: its present state, its report, one of its updates, what it needed beside what was predicted."""

from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from shoestring import api
from shoestring.base import streams
from shoestring.cli import completion
from shoestring.cli.config import Config
from shoestring.cli.options import Json, OnHere, RecipeOfRun, Set, option_values
from shoestring.cli.output import print_answer, show_progress


def replay(
    run: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run's directory.", autocompletion=completion.run_directory)
    ],
    update: Annotated[
        int, typer.Option("--update", metavar="N", help="The update's number, from 1: state.json's `update` after it.")
    ],
    on: OnHere = "local",
    recipe: RecipeOfRun = None,
    debug: Annotated[
        bool,
        typer.Option("--break", help="Stop in Python's debugger, or the one of PYTHONBREAKPOINT, at the loss's start."),
    ] = False,
    set_: Set = None,
    config_file: Config = None,
    as_json: Json = False,
) -> None:
    """Make one update of a run again, to the bit, and show it: samples, losses, gradients, activations, overflow.

    It begins with the nearest checkpoint before the update. The run is not changed.
    """
    from shoestring.answers.replayed import document

    replayed = api.replay(
        run, update, recipe=recipe, on=on, debug=debug, **option_values(api.replay, set_, config_file)
    )
    print_answer(replayed.json(), as_json, lambda: document(replayed))


def watch(
    run: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run's directory.", autocompletion=completion.run_directory)
    ],
    once: Annotated[bool, typer.Option("--once", help="Print the present state and end.")] = False,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the report there whenever the run has changed; the page reloads itself."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: one object for each change, on a line of its own.")
    ] = False,
) -> None:
    """Show a run while it trains, until it is finished or Ctrl-C is pressed. Its directory is only read."""
    from shoestring.answers.watch.screen import Screen
    from shoestring.answers.watch.watching import show

    views = api.watch(run, page=page)
    with show_progress(f"reading {run}"):
        view = next(views)
    if page:
        streams.write_messages(f"the page is {page.absolute().as_uri()}")
    if once:
        print_answer(view.json(), as_json, lambda: Screen(view))
    else:
        show(chain([view], views), as_json=as_json)


def measured(
    run: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="A run's directory.", autocompletion=completion.run_directory)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the measurement to a new JSON file; without it, show it.")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Check such a file of somebody; with DIR, also against the run."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a run was predicted to need beside what it needed, and write it as a file to publish.

    The file names no path, no data and no host.
    """
    from shoestring.answers.measurement import document

    measurement = api.measured(run, out=out, check=check)
    print_answer(measurement.json(), as_json, lambda: document(measurement, str(run or "")))


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...", help="A run's directory, or several.", autocompletion=completion.run_directory
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The page; by default report.html in the run, or comparison.html here."),
    ] = None,
) -> None:
    """Write the report of a run, or a comparison of several, as a self-contained page, and print its path."""
    print(streams.one_line(str(api.report(*runs, out=out))), file=streams.answer_stream())
