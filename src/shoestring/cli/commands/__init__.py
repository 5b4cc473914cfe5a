"""The commands. Each parses its options, calls one function of `api` and prints the answer.

Answers go to stdout, progress and errors to stderr. The exit status is 0 for an answer (also "does not fit") and for a
run that finished or paused, 1 if a run or a check failed, 2 for invalid usage. A command computes nothing itself and
imports nothing below `api`, so that what it does can be done from Python too.
"""

import os
import sys
from functools import partial
from typing import Annotated

import typer

from shoestring.base import streams
from shoestring.base.packages.quiet import quiet_bitsandbytes
from shoestring.cli import completion
from shoestring.cli.commands import (
    checking,
    kaggle,
    listing,
    new,
    notebooks,
    planning,
    rehearsing,
    runs,
    training,
    weights,
)
from shoestring.cli.config import Command
from shoestring.cli.options import examples
from shoestring.cli.output import status_of
from shoestring.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Plan PyTorch training for small GPUs before spending any quota, train, and resume bit for bit.",
    epilog="RECIPE is the name of a built-in recipe or path/to/file.py. "
    "To begin, type: [bold]shoestring new recipe mine[/], then [bold]shoestring plan mine.py --on kaggle-t4[/]",
)


def _show_version(is_given: bool) -> None:
    if is_given:
        print(f"shoestring {__version__}")
        raise typer.Exit()


@app.callback()
def _options_of_all(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""


for command, *lines in (
    (listing.recipes, "recipes", "recipes temporal"),
    (listing.targets, "targets", "targets --json"),
    (
        planning.estimate,
        "estimate temporal --on t4 --set micro_batch=64 --set precision=fp16",
        "estimate hf:path/to/config.json --on t4 --set seq_len=1024 --set lora_r=8",
    ),
    (
        planning.plan,
        "plan legal --on kaggle-t4 --set epochs=5",
        "plan path/to/file.py --on kaggle-t4 --on a100-80 --limit 9h",
    ),
    (
        rehearsing.rehearse,
        "rehearse train.py --on kaggle-t4 --updates 20 -- --batch_size 8",
        "rehearse torchrun --on kaggle-t4x2 -- --nproc_per_node 2 train.py",
    ),
    (checking.check, "check temporal --on kaggle-t4 --set size=tiny", "check --measure my-gpu.json"),
    (
        training.train,
        "train temporal --run runs/temporal",
        "train legal --run runs/legal --on kaggle-t4 --limit 9h --set epochs=5",
    ),
    (
        weights.evaluate,
        "evaluate runs/legal/best --set data=judgments/ --whole --out rows.csv",
        "evaluate CR_net.pth --recipe cloud --set data=tiles/",
    ),
    (weights.export, "export runs/temporal --to onnx", "export runs/legal --to huggingface --out role-model"),
    (
        weights.predict,
        "predict runs/legal --set data=judgment.txt",
        "predict runs/cloud/best --set data=tiles/ --out clear/",
    ),
    (runs.replay, "replay runs/temporal --update 120", "replay runs/mine --update 7 --break"),
    (
        notebooks.notebook,
        "notebook temporal --on kaggle-t4x2 --out notebooks/temporal",
        "notebook mine.py --on colab-t4 --out notebooks/mine --set epochs=5",
    ),
    (runs.watch, "watch runs/temporal", "watch runs/legal --page live.html"),
    (runs.measured, "measured runs/temporal", "measured --check measurements/FILE.json"),
    (runs.report, "report runs/temporal", "report runs/first runs/second --out comparison.html"),
):
    has_arguments = command is rehearsing.rehearse
    app.command(cls=rehearsing.WithArguments if has_arguments else Command, epilog=examples(*lines))(command)
app.add_typer(new.app, name="new")
app.add_typer(kaggle.app, name="kaggle")


def main() -> None:
    """Run the command line and exit. An error is printed as its message and hint on stderr, without a traceback."""
    quiet_bitsandbytes()
    with streams.usable():
        if os.environ.get(completion.VARIABLE) == "complete_bash":
            completion.complete_in_bash(app, os.environ)
        sys.exit(status_of(partial(app, standalone_mode=False)))
