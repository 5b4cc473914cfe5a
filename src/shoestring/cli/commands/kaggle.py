"""The commands `shoestring kaggle ...`: a run on Kaggle, session after session, from a machine without a GPU."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from shoestring.api import kaggle
from shoestring.base import shell, streams
from shoestring.base.errors import UsageError
from shoestring.base.units import parse_seconds
from shoestring.cli import completion
from shoestring.cli.config import Command, Config
from shoestring.cli.options import AllowCpu, Json, RunDir, Set, examples, option_values, parse
from shoestring.cli.output import print_answer

T = TypeVar("T", bound=Callable[..., Any])

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Train on Kaggle from a laptop without a GPU, session after session, until the run is finished.",
)

_EVERY = "60s"
Every = Annotated[
    str, typer.Option(metavar="DURATION", help="How often Kaggle is asked; all other waiting derives from it.")
]


def _command(*example_lines: str) -> Callable[[T], T]:
    return app.command(cls=Command, epilog=examples(*(f"kaggle {line}" for line in example_lines)))


@_command(
    "start temporal --run runs/temporal --set epochs=5",
    "start cloud --run runs/cloud --set data=me/cloud-tiles --set table=me/cloud-tables:data.csv",
)
def start(
    run: RunDir,
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE]",
            help="The name of a recipe or path/to/file.py; may be left out to go on.",
            autocompletion=completion.recipe,
        ),
    ] = None,
    on: Annotated[
        str, typer.Option("--on", metavar="TARGET", help="The machine of Kaggle; `shoestring targets` lists them.")
    ] = "kaggle-t4x2",
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OWNER/SET[:PATH]",
            help="Attach a dataset; may be repeated. The one with PATH, or the only one, becomes the option data. Any "
            "option that is a path: --set KEY=OWNER/SET[:PATH].",
        ),
    ] = None,
    limit: Annotated[
        str | None, typer.Option(metavar="DURATION", help="The length of a session; by default what Kaggle allows.")
    ] = None,
    every: Every = _EVERY,
    internet: Annotated[
        bool, typer.Option("--internet/--no-internet", help="Whether sessions have internet; nothing needs it.")
    ] = True,
    allow_cpu: AllowCpu = False,
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="The owner of the kernels, if it is not the account.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Whether to wait for the refresh of the quota.")
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print all that would be sent, contact nothing, and end.")
    ] = False,
    folds: Annotated[int | None, typer.Option(hidden=True)] = None,
    set_: Set = None,
    config_file: Config = None,
    as_json: Json = False,
) -> None:
    """Plan, send, and train on Kaggle until the run is finished and in DIR. Repeat the command to go on.

    DIR is new, or was begun by this command: a run that `shoestring train` has begun here cannot go on on Kaggle.

    Ctrl-C or a sleeping laptop does not stop the session on Kaggle: the same command finds it again.
    """
    from shoestring.answers.kaggle import document
    from shoestring.answers.kaggle import preview as preview_document
    from shoestring.answers.plan import summary

    if folds is not None:
        raise UsageError(
            "--folds: a session on Kaggle trains one run, and each fold is one",
            hint=f"start fold after fold: shoestring kaggle start {recipe or 'RECIPE'} --set fold=1/{folds} --run "
            f"{run}/fold-1, and so on to fold-{folds}; then `shoestring train {recipe or 'RECIPE'} --folds {folds} "
            f"--run {run}` writes the out-of-fold predictions here",
        )
    session: dict[str, Any] = {
        "run": run,
        "on": on,
        "datasets": data or (),
        "limit_seconds": parse("--limit", limit, parse_seconds),
        "internet": internet,
        "allow_cpu": allow_cpu,
        "user": user,
        **option_values(kaggle.start, set_, config_file),
    }
    every_seconds = parse("--every", every, parse_seconds) or 0.0

    def show_plan(plan: Any) -> None:
        if not as_json:
            print_answer({}, False, lambda: summary(plan))

    if dry_run:
        sent = kaggle.preview(recipe, **session, on_plan=show_plan)
        print_answer(sent, as_json, lambda: preview_document(sent))
        return
    try:
        chain = kaggle.start(
            recipe,
            **session,
            every_seconds=every_seconds,
            wait=wait,
            on_event=_write_event,
            on_plan=show_plan,
        )
    except KeyboardInterrupt:
        if not (run / "kaggle" / "chain.json").exists():
            streams.write_messages("interrupted: nothing has been sent to Kaggle")
            raise typer.Exit(0) from None
        streams.write_messages(
            "interrupted: a session that runs on Kaggle goes on",
            f"go on:   shoestring kaggle start --run {shell.quote(run)}",
            f"stop it: shoestring kaggle stop --run {shell.quote(run)}",
        )
        raise typer.Exit(0) from None
    print_answer(chain, as_json, lambda: document(chain, run))
    if chain["status"] == "failed":
        raise typer.Exit(1)


ChainDir = Annotated[
    Path,
    typer.Option(
        "--run",
        metavar="DIR",
        help="The directory of the run, as given to shoestring kaggle start.",
        autocompletion=completion.run_directory,
    ),
]


@_command("status --run runs/temporal", "status --run runs/temporal --json")
def status(run: ChainDir, as_json: Json = False) -> None:
    """Show how far the run on Kaggle is. Nothing is changed."""
    from shoestring.answers.kaggle import document

    chain = kaggle.status(run)
    print_answer(chain, as_json, lambda: document(chain, run))


@_command("watch --run runs/temporal", "watch --run runs/temporal --every 20s")
def watch(run: ChainDir, every: Every = _EVERY) -> None:
    """Print what happens and the log of the session as it comes, until the run has ended. Nothing is changed."""
    for line in kaggle.watch(run, every_seconds=parse("--every", every, parse_seconds) or 0.0):
        print(streams.printable(line), file=streams.answer_stream(), flush=True)


@_command("fetch --run runs/temporal", "fetch --run runs/temporal --json")
def fetch(run: ChainDir, as_json: Json = False) -> None:
    """Download the newest checkpoint, weights and events to DIR, where `shoestring train` can go on with the run."""
    from shoestring.answers.kaggle import document

    chain = kaggle.fetch(run)
    print_answer(chain, as_json, lambda: document(chain, run))


@_command("stop --run runs/temporal", "stop --run runs/temporal --yes")
def stop(
    run: ChainDir,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    every: Every = _EVERY,
    as_json: Json = False,
) -> None:
    """Delete the kernels that may run: the only thing that ends their use of the quota."""
    from shoestring.answers.kaggle import document

    chain = kaggle.stop(
        run,
        confirm=lambda kernels, loss: yes or _confirm(kernels, loss),
        every_seconds=parse("--every", every, parse_seconds) or 0.0,
    )
    print_answer(chain, as_json, lambda: document(chain, run))


def _confirm(kernels: list[str], loss: str) -> bool:
    """Ask whether to delete. Raises UsageError if nobody can answer."""
    streams.write_messages(
        f"stopping deletes {', '.join(kernels) or 'nothing, since no session runs'}",
        "deleting a kernel is the only thing that ends its session and its use of the quota",
        loss,
    )
    if not streams.is_terminal():
        raise UsageError("nobody can be asked", hint="add --yes")
    if typer.confirm("stop?", err=True):
        return True
    streams.write_messages("nothing was stopped")
    raise typer.Exit(0)


def _write_event(text: str) -> None:
    streams.write_messages(f"{time.strftime('%H:%M:%S')} {text}")
