"""The command line: each command parses its options, calls one function of `api` and prints the answer.

Answers go to stdout, progress and errors to stderr. The exit status is 0 for an answer (also "does not fit") and for a
run that finished or paused, 1 if a run or a check failed, 2 for invalid usage.
"""

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from shoestring import api
from shoestring.base import streams
from shoestring.base.errors import UsageError
from shoestring.base.packages.quiet import quiet_bitsandbytes
from shoestring.base.units import parse_bytes, parse_seconds, parse_until
from shoestring.cli import completion, kaggle
from shoestring.cli.config import Config, RecipeCommand
from shoestring.cli.options import (
    AllowCpu,
    Json,
    On,
    OnHere,
    Probe,
    Purpose,
    Recipe,
    RecipeOfRun,
    RunDir,
    Saved,
    Set,
    examples,
    option_values,
    parse,
)
from shoestring.cli.output import print_answer, show_progress, show_seconds_left, status_of
from shoestring.version import __version__

T = TypeVar("T", bound=Callable[..., Any])

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Plan PyTorch training for small GPUs before spending any quota, train, and resume bit for bit.",
    epilog="RECIPE is the name of a built-in recipe or path/to/file.py. "
    "To begin, type: [bold]shoestring plan temporal --on kaggle-t4[/]",
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


def _command(*example_lines: str) -> Callable[[T], T]:
    """Return the decorator of a command whose help ends with these examples."""
    return app.command(cls=RecipeCommand, epilog=examples(*example_lines))


@_command("recipes", "recipes temporal")
def recipes(
    recipe: Annotated[
        str | None,
        typer.Argument(metavar="RECIPE", help="List the options of this recipe.", autocompletion=completion.recipe),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the built-in recipes and those of installed packages, or the options of one recipe."""
    from shoestring.answers.terminal.recipes import options, table

    recipes = api.recipes(recipe)
    if recipe is None:
        print_answer(recipes, as_json, lambda: table(recipes))
    else:
        print_answer(recipes[0], as_json, lambda: options(recipes[0]))


@_command("targets", "targets --json")
def targets(as_json: Json = False) -> None:
    """List the targets that a run can be planned for: platforms, GPUs, and this machine."""
    from shoestring.answers.terminal.targets import screen

    targets = api.targets()
    print_answer([target.json() for target in targets], as_json, lambda: screen(targets))


@_command(
    "estimate temporal --on t4 --set micro_batch=64 --set precision=fp16",
    "estimate hf:path/to/config.json --on t4 --set seq_len=1024 --set lora_r=8",
)
def estimate(
    recipe: Recipe, on: On = "local", set_: Set = None, config_file: Config = None, as_json: Json = False
) -> None:
    """Estimate the memory of given settings, part by part, without a GPU."""
    from shoestring.answers.terminal.estimate import screen

    with show_progress(f"tracing one training step of {recipe} for {on}"):
        estimate = api.estimate(recipe, on, **option_values(api.estimate, set_, config_file))
    print_answer(estimate.json(), as_json, lambda: screen(estimate))


@_command(
    "plan legal --on kaggle-t4 --set epochs=5",
    "plan path/to/file.py --on kaggle-t4 --on a100-80 --limit 9h",
)
def plan(
    recipe: Recipe,
    on: Annotated[
        list[str] | None,
        typer.Option(
            "--on",
            metavar="TARGET",
            help="The machine, by default local; repeat it to compare several, or kaggle for all that Kaggle has. "
            "`shoestring targets` lists them.",
            autocompletion=completion.target_or_platform,
        ),
    ] = None,
    limit: Annotated[
        str | None, typer.Option(metavar="DURATION", help="The length of a session, such as 90s, 20m or 9h.")
    ] = None,
    disk: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The disk space for the run's directory, such as 15GB.")
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(metavar="USD", min=0, help="The price of one GPU for an hour, instead of the list price."),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="A run on the same GPU, whose measured times scale the predictions, or a file of check --measure.",
            autocompletion=completion.run_directory,
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="Find the cheapest target that is done by then: sunday, 2026-12-01, 3d or 40h.",
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Print everything: reasons, alternatives, proposals, phases.")
    ] = False,
    purpose: Annotated[
        Purpose, typer.Option("--for", help="What to plan: training, or predictions with a trained model.")
    ] = Purpose.TRAIN,
    probe: Probe = None,
    set_: Set = None,
    config_file: Config = None,
    as_json: Json = False,
) -> None:
    """Predict whether a run fits, choose its settings, and predict its time, sessions and cost, without a GPU."""
    from shoestring.answers.terminal.comparison import screen as comparison_screen
    from shoestring.answers.terminal.plan import screen as plan_screen
    from shoestring.answers.terminal.plan import summary

    names = on or (api.priced_targets() if by else ["local"])
    if purpose is Purpose.PREDICT:
        _plan_inference(recipe, names, option_values(api.plan_inference, set_, config_file), as_json)
        return
    limit_seconds, disk_bytes = parse("--limit", limit, parse_seconds), parse("--disk", disk, parse_bytes)
    by_seconds = parse("--by", by, lambda text: parse_until(text, datetime.now().astimezone()))
    with show_progress(f"planning {recipe} for {', '.join(names)}"):
        comparison = api.compare(
            recipe,
            names,
            limit_seconds=limit_seconds,
            disk_bytes=disk_bytes,
            usd_per_hour=price,
            calibrate=calibrate,
            by_seconds=by_seconds,
            probe=probe,
            **option_values(api.compare, set_, config_file),
        )
    if len(names) > 1 or by or comparison.platform:
        print_answer(comparison.json(), as_json, lambda: comparison_screen(comparison))
    else:
        plan = comparison.plans[0]
        print_answer(plan.json(), as_json, lambda: plan_screen(plan) if full else summary(plan))


def _plan_inference(recipe: str, names: list[str], values: dict[str, Any], as_json: bool) -> None:
    from rich.console import Group

    from shoestring.answers.terminal.inference import screen

    with show_progress(f"planning predictions of {recipe} for {', '.join(names)}"):
        plans = [api.plan_inference(recipe, name, **values) for name in api.target_names(names)]
    facts = [plan.json() for plan in plans]
    print_answer(facts if len(plans) > 1 else facts[0], as_json, lambda: Group(*map(screen, plans)))


@_command("check temporal --on kaggle-t4 --set size=tiny", "check --measure my-gpu.json")
def check(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE", help="Run a few of its updates on this machine.", autocompletion=completion.recipe
        ),
    ] = None,
    on: On = "local",
    run: Annotated[
        Path,
        typer.Option(
            "--run", metavar="DIR", help="The directory for the run.", autocompletion=completion.run_directory
        ),
    ] = Path("runs"),
    measure: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Instead of checking, measure the rates of the GPU (2 min) or the CPU (40 s) and write this .json.",
        ),
    ] = None,
    lengths: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Instead of checking, count the lengths of RECIPE's samples into this .json, for plans elsewhere.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an older file of --measure or --lengths.")
    ] = False,
    set_: Set = None,
    config_file: Config = None,
    as_json: Json = False,
) -> None:
    """Check this machine before a run: GPU, build, memory, disk, data, internet. The status is 1 if a check fails.

    With --measure, write the rates of its GPU to a file that --on and --calibrate take; with --lengths, the lengths of
    the recipe's samples to a file for --set lengths=FILE.
    """
    from shoestring.answers.terminal.checked import screen

    if lengths is not None:
        if recipe is None or measure is not None:
            hint = f"shoestring check RECIPE --lengths {lengths}"
            raise UsageError("--lengths needs a recipe, and no --measure", hint=hint)
        _write_lengths(recipe, lengths, overwrite, option_values(api.write_lengths, set_, config_file), as_json)
        return
    if measure is not None:
        _measure(measure, on, [recipe or "", *(f"--set {pair}" for pair in set_ or ())], overwrite, as_json)
        return
    if overwrite:
        raise UsageError("--overwrite is an option of --measure and --lengths", hint="leave it out")
    with show_progress(f"checking this machine{f' and running a few updates of {recipe}' if recipe else ''}"):
        checked = api.check(recipe, on, run=run, **option_values(api.check, set_, config_file))
    print_answer(checked.json(), as_json, lambda: screen(checked))
    if checked.status == "fail":
        raise typer.Exit(1)


def _write_lengths(recipe: str, file: Path, overwrite: bool, values: dict[str, Any], as_json: bool) -> None:
    """Write the lengths of the recipe's samples to `file`."""
    from shoestring.answers.terminal.lengths import screen

    with show_seconds_left(f"reading the data of {recipe}") as progress:
        lengths = api.write_lengths(recipe, file, overwrite=overwrite, progress=progress, **values)
    print_answer(lengths.json(), as_json, lambda: screen(recipe, file, lengths))


def _measure(file: Path, on: str, check_arguments: list[str], overwrite: bool, as_json: bool) -> None:
    """Measure this machine; `check_arguments` are arguments that only a check has."""
    from shoestring.answers.terminal.measured import screen

    if extra := " ".join(filter(None, check_arguments)):
        raise UsageError(
            f"--measure measures the machine alone, without {extra}", hint=f"shoestring check --measure {file}"
        )
    with show_seconds_left("measuring the rates of this machine") as progress:
        measured = api.measure(file, on, overwrite=overwrite, progress=progress)
    print_answer(measured.json(), as_json, lambda: screen(measured))


@_command("train temporal --run runs/temporal", "train legal --run runs/legal --on kaggle-t4 --limit 9h --set epochs=5")
def train(
    recipe: Recipe,
    run: RunDir,
    on: On = "local",
    limit: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Save and end this session within this time, e.g. 90s, 20m or 1.5h."),
    ] = None,
    disk: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="The disk space for the run's directory, such as 15GB; by default the target's."
        ),
    ] = None,
    set_: Set = None,
    config_file: Config = None,
    allow_inexact: Annotated[
        bool,
        typer.Option("--allow-inexact", help="Continue with other versions, hardware or settings, not bit for bit."),
    ] = False,
    allow_cpu: AllowCpu = False,
    log: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Write DIR/logs/NAME while it trains: tensorboard or csv. May be given several times."
        ),
    ] = None,
    backup: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Copy each checkpoint there in the background: a folder, s3://, hf://, kaggle:// or a URL of fsspec.",
        ),
    ] = None,
    from_url: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="URL",
            help="If DIR has no run, begin from the newest copy of a --backup. If there is none, and URL is that of "
            "--backup, a new run begins.",
        ),
    ] = None,
    probe: Probe = None,
    as_json: Json = False,
) -> None:
    """Train until the run is finished or the session is over; repeat the command to continue.

    A run without a plan is planned first. Ctrl-C saves and stops.
    """
    session: dict[str, Any] = {
        "run": run,
        "on": on,
        "limit_seconds": parse("--limit", limit, parse_seconds),
        "allow_cpu": allow_cpu,
    }
    arguments = {
        "disk_bytes": parse("--disk", disk, parse_bytes),
        "allow_inexact": allow_inexact,
        "log": log or (),
        "backup": backup,
        "from_url": from_url,
        "probe": probe,
        **option_values(api.train, set_, config_file),
    }
    if not _is_own_process():
        _train(recipe, {**session, **arguments}, as_json)
        return
    # The supervisor prints an outcome if it has to end the session, and has no time for imports then.
    importlib.import_module("shoestring.answers.terminal.outcome")
    importlib.import_module("shoestring.answers.terminal.console")
    session["started"] = api.process_started()  # the limit of a session includes the time of the imports
    work: Callable[[], None] = partial(_train, recipe, {**session, **arguments}, as_json)
    if config_file:
        work = config_file.naming_in_errors(set_ or ())(work)
    _print_outcome(api.train_supervised(lambda: status_of(work), recipe, **session), recipe, run, as_json)


def _is_own_process() -> bool:
    """Return whether this process is there for the command alone, so that it can become a supervisor."""
    return "torch" not in sys.modules


def _train(recipe: str, arguments: dict[str, Any], as_json: bool) -> None:
    _print_outcome(api.train(recipe, **arguments), recipe, arguments["run"], as_json)


def _print_outcome(outcome: Any, recipe: str, run: Path, as_json: bool) -> None:
    if not api.is_first_process():
        return
    from shoestring.answers.terminal.outcome import screen

    print_answer(asdict(outcome), as_json, lambda: screen(outcome, recipe, run))
    if error := streams.lost_output():  # the session is not a failure
        streams.write_messages(
            f"standard output could not be written ({error}); the outcome is in {run / 'state.json'}"
        )


@_command(
    "evaluate runs/legal/best --set data=judgments/ --whole --out rows.csv",
    "evaluate CR_net.pth --recipe cloud --set data=tiles/",
)
def evaluate(
    directory: Saved,
    on: OnHere = "local",
    recipe: RecipeOfRun = None,
    limit: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Give up after this time, e.g. 90s, 20m or 1.5h.")
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Evaluate on all data as one part.")] = False,
    first: Annotated[
        int | None, typer.Option(metavar="N", help="Evaluate only the first N samples of each part, such as one batch.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write target and prediction of each sample, as .jsonl or .csv."),
    ] = None,
    set_: Set = None,
    config_file: Config = None,
    as_json: Json = False,
) -> None:
    """Compute the metrics of saved weights on the run's data or on other data. The run is not changed."""
    from shoestring.answers.terminal.evaluated import screen

    evaluated = api.evaluate(
        directory,
        recipe=recipe,
        on=on,
        limit_seconds=parse("--limit", limit, parse_seconds),
        whole=whole,
        first=first,
        out=out,
        **option_values(api.evaluate, set_, config_file),
    )
    print_answer(asdict(evaluated), as_json, lambda: screen(evaluated))


@_command("export runs/temporal --to onnx", "export runs/legal --to huggingface --out role-model")
def export(
    directory: Saved,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="safetensors, or one of the recipe's formats: onnx, huggingface, adapter, merged, gguf.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="The folder to write; by default export/FORMAT in the run."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an older export in the folder.")] = False,
    recipe: RecipeOfRun = None,
    set_: Set = None,
    config_file: Config = None,
    as_json: Json = False,
) -> None:
    """Write a run's model to a folder that other libraries load, with a model card.

    The outputs of the export are compared with those of the model.
    """
    from shoestring.answers.terminal.exported import screen

    values = option_values(api.export, set_, config_file)
    with show_progress(f"exporting {directory} to {to}"):
        exported = api.export(directory, to=to, out=out, overwrite=overwrite, recipe=recipe, **values)
    print_answer(asdict(exported), as_json, lambda: screen(exported))


@_command(
    "predict runs/legal --set data=judgment.txt",
    "predict runs/cloud/best --set data=tiles/ --out clear/",
)
def predict(
    directory: Saved,
    on: OnHere = "local",
    recipe: RecipeOfRun = None,
    limit: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Pause after this time, e.g. 90s, 20m or 1.5h.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Write the rows to a .jsonl or .csv file, or with the recipe's files to a folder; repeat the command "
            "to complete it. By default JSON lines are printed.",
        ),
    ] = None,
    set_: Set = None,
    config_file: Config = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON; needs --out.")] = False,
) -> None:
    """Predict for new inputs, without targets: a row for each, in their order. Set data to their file or folder.

    The status is 1 if an input cannot be used; all others are predicted. Without data, on a terminal, a language model
    answers what you type.
    """
    from shoestring.answers.terminal.predictions import messages

    if as_json and out is None:
        raise UsageError("--json prints the outcome, and without --out the rows are printed", hint="add --out PATH")
    values = option_values(api.predict, set_, config_file)
    is_conversation = "data" not in values and out is None and limit is None and streams.is_terminal()
    if is_conversation and api.converse(
        directory, recipe=recipe, on=on, input_stream=sys.stdin, output_stream=streams.answer_stream(), **values
    ):
        return
    predictions = api.predict(
        directory,
        recipe=recipe,
        on=on,
        limit_seconds=parse("--limit", limit, parse_seconds),
        out=out,
        **values,
    )
    streams.write_messages(*messages(predictions))
    if as_json:
        print_answer(asdict(predictions), as_json, lambda: None)
    if predictions.errors and predictions.status == "finished":
        raise typer.Exit(1)


@_command(
    "replay runs/temporal --update 120",
    "replay runs/mine --update 7 --break",
)
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
    from shoestring.answers.terminal.replayed import screen

    replayed = api.replay(
        run, update, recipe=recipe, on=on, debug=debug, **option_values(api.replay, set_, config_file)
    )
    print_answer(replayed.json(), as_json, lambda: screen(replayed))


@_command(
    "notebook temporal --on kaggle-t4x2 --out notebooks/temporal",
    "notebook mine.py --on colab-t4 --out notebooks/mine --set epochs=5",
)
def notebook(
    recipe: Recipe,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder for the two files.")],
    on: Annotated[
        str,
        typer.Option("--on", metavar="TARGET", help="The machine of Kaggle or Colab; `shoestring targets` lists them."),
    ] = "kaggle-t4x2",
    user: Annotated[str, typer.Option(metavar="NAME", help="Your account on Kaggle, for the metadata.")] = "USER",
    internet: Annotated[
        bool,
        typer.Option(
            "--internet/--no-internet",
            help="Whether the session has internet. Without it, DIR also gets wheels of what the image lacks.",
        ),
    ] = True,
    allow_cpu: AllowCpu = False,
    set_: Set = None,
    config_file: Config = None,
    as_json: Json = False,
) -> None:
    """Write a notebook that checks, plans, trains and reports on Kaggle or Colab, for those who click.

    DIR gets notebook.ipynb and kernel-metadata.json, ready for `kaggle kernels push -p DIR`.
    """
    from shoestring.answers.terminal.notebook import screen

    values = option_values(api.notebook, set_, config_file)
    written = api.notebook(recipe, on, out=out, user=user, internet=internet, allow_cpu=allow_cpu, **values)
    print_answer(written.json(), as_json, lambda: screen(written))


@_command("watch runs/temporal", "watch runs/legal --page live.html")
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
    from shoestring.answers.terminal.watched import Screen
    from shoestring.answers.terminal.watching import show

    views = api.watch(run, page=page)
    with show_progress(f"reading {run}"):
        view = next(views)
    if page:
        streams.write_messages(f"the page is {page.absolute().as_uri()}")
    if once:
        print_answer(view.json(), as_json, lambda: Screen(view))
    else:
        show(chain([view], views), as_json=as_json)


@_command("report runs/temporal", "report runs/first runs/second --out comparison.html")
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


app.add_typer(kaggle.app, name="kaggle")


def main() -> None:
    """Run the command line and exit. An error is printed as its message and hint on stderr, without a traceback."""
    quiet_bitsandbytes()
    with streams.usable():
        if os.environ.get(completion.VARIABLE) == "complete_bash":
            completion.complete_in_bash(app, os.environ)
        sys.exit(status_of(partial(app, standalone_mode=False)))
