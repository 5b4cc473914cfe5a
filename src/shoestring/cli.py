"""The command line: one verb each, thin. stdout is data, stderr is talk.

Status 0: answered, finished or paused, also when the answer is "does not fit"; 1: a run or a check failed; 2: a wrong
question.
"""

import inspect
import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from shoestring import api, config
from shoestring.errors import ShoestringError, UsageError
from shoestring.units import parse_bytes, parse_seconds

T = TypeVar("T")

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Train real models on free and small GPUs: plan before any quota is spent, survive, continue bit for bit.",
    epilog="RECIPE is a built-in name or path/to/file.py. Begin with: [bold]shoestring plan temporal --on kaggle-t4[/]",
)

Recipe = Annotated[str, typer.Argument(metavar="RECIPE", help="A built-in recipe's name, or path/to/file.py.")]
On = Annotated[str, typer.Option("--on", metavar="TARGET", help="Where it runs; see: shoestring targets.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="An option of the recipe or a setting. May be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
RunDir = Annotated[
    Path, typer.Option("--run", metavar="DIR", help="The run's directory; continued where it has a run.")
]


@app.command()
def recipes(as_json: Json = False) -> None:
    """The built-in recipes and what can be set for each."""
    from shoestring.report.terminal.recipes import screen

    recipes = api.recipes()
    _answer(recipes, as_json, lambda: screen(recipes))


@app.command()
def targets(as_json: Json = False) -> None:
    """Where a run can be planned for: platforms and bare GPUs."""
    from shoestring.report.terminal.targets import screen

    targets = api.targets()
    _answer([target.json() for target in targets], as_json, lambda: screen(targets))


@app.command()
def estimate(recipe: Recipe, on: On = "local", set_: Set = None, as_json: Json = False) -> None:
    """The memory of given settings, as named parts. Needs no GPU."""
    from shoestring.report.terminal.estimate import screen

    with _waiting(f"tracing one training step of {recipe} for {on}"):
        estimate = api.estimate(recipe, on, **_values(api.estimate, set_))
    _answer(estimate.json(), as_json, lambda: screen(estimate))


@app.command()
def plan(
    recipe: Recipe,
    on: Annotated[
        list[str] | None,
        typer.Option("--on", metavar="TARGET", help="Where it runs; several to compare them. See: shoestring targets."),
    ] = None,
    limit: Annotated[str | None, typer.Option(metavar="DURATION", help="A session ends after 90s, 20m or 9h.")] = None,
    disk: Annotated[str | None, typer.Option(metavar="SIZE", help="The run's directory may take 15GB.")] = None,
    price: Annotated[
        float | None, typer.Option(metavar="USD", min=0, help="What an hour of one GPU costs; by default a list price.")
    ] = None,
    calibrate: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A run on the same GPU, whose measured time scales predictions.")
    ] = None,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Does it fit, under which settings, for how long, at what cost, and why. Needs no GPU."""
    from shoestring.report.terminal.comparison import screen as comparison_screen
    from shoestring.report.terminal.plan import screen as plan_screen

    names = on or ["local"]
    limit_seconds, disk_bytes = _parsed("--limit", limit, parse_seconds), _parsed("--disk", disk, parse_bytes)
    with _waiting(f"planning {recipe} for {', '.join(names)}"):
        comparison = api.compare(
            recipe,
            names,
            limit_seconds=limit_seconds,
            disk_bytes=disk_bytes,
            usd_per_hour=price,
            calibrate=calibrate,
            **_values(api.compare, set_),
        )
    if len(names) > 1:
        _answer(comparison.json(), as_json, lambda: comparison_screen(comparison))
    else:
        plan = comparison.plans[0]
        _answer(plan.json(), as_json, lambda: plan_screen(plan))


@app.command()
def check(
    recipe: Annotated[str | None, typer.Argument(metavar="RECIPE", help="A few of its updates are tried here.")] = None,
    on: On = "local",
    run: Annotated[Path, typer.Option("--run", metavar="DIR", help="Where the run would be.")] = Path("runs"),
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Look at this machine before a run: GPU, build, memory, disk, data, internet. Status 1 where something fails."""
    from shoestring.report.terminal.checked import screen

    with _waiting(f"looking at this machine{f' and trying {recipe}' if recipe else ''}"):
        checked = api.check(recipe, on, run=run, **_values(api.check, set_))
    _answer(checked.json(), as_json, lambda: screen(checked))
    if checked.status == "fail":
        raise typer.Exit(1)


@app.command()
def train(
    recipe: Recipe,
    run: RunDir,
    on: On = "local",
    limit: Annotated[
        str | None, typer.Option(metavar="DURATION", help="End this session before 90s, 20m or 1.5h are over.")
    ] = None,
    disk: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The run's directory may take 15GB; by default the platform's.")
    ] = None,
    set_: Set = None,
    allow_inexact: Annotated[
        bool, typer.Option("--allow-inexact", help="Continue under other versions, hardware or settings.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Plan if there is no plan, train, and continue if DIR has a run. Stops by itself before a session's limit."""
    from shoestring.report.terminal.outcome import screen

    outcome = api.train(
        recipe,
        run=run,
        on=on,
        limit_seconds=_parsed("--limit", limit, parse_seconds),
        disk_bytes=_parsed("--disk", disk, parse_bytes),
        allow_inexact=allow_inexact,
        started=_process_started(),
        **_values(api.train, set_),
    )
    _answer(asdict(outcome), as_json, lambda: screen(outcome, recipe, run))


@app.command()
def evaluate(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run, its best or light, or a checkpoint of it.")],
    on: Annotated[str, typer.Option("--on", metavar="TARGET", help="local, or cpu whatever GPU there is.")] = "local",
    recipe: Annotated[
        str | None, typer.Option("--recipe", metavar="RECIPE", help="Where the run's own has moved.")
    ] = None,
    limit: Annotated[str | None, typer.Option(metavar="DURATION", help="Give up before 90s, 20m or 1.5h.")] = None,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """The metrics of a run's or a checkpoint's weights, on its data or --set data=PATH. Writes nothing."""
    from shoestring.report.terminal.evaluated import screen

    limit_seconds = _parsed("--limit", limit, parse_seconds)
    values = _values(api.evaluate, set_)
    evaluated = api.evaluate(directory, recipe=recipe, on=on, limit_seconds=limit_seconds, **values)
    _answer(asdict(evaluated), as_json, lambda: screen(evaluated))


@app.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="A run's directory.")],
) -> None:
    """Draw a run as a self-contained page, report.html, and print its path."""
    print(api.report(run))


def main() -> None:
    """Run the command line and exit; an error is its message and hint on stderr, not a traceback."""
    # On some CPUs it warns at every import that it has not fetched a kernel from the hub.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        app()
    except ShoestringError as error:
        _say(f"error: {error}")
        sys.exit(error.status)
    except OSError as error:
        _say(f"error: {error}")
        sys.exit(1)


def _parsed(name: str, text: str | None, parse: Callable[[str], T]) -> T | None:
    """What `parse` makes of an option's text; None for none."""
    try:
        return None if text is None else parse(text)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from error


def _values(verb: Callable[..., object], set_: list[str] | None) -> dict[str, Any]:
    """What --set says, as arguments of `verb` beside those it names itself."""
    values = config.parse_pairs(set_ or [])
    parameters = inspect.signature(verb).parameters.values()
    taken = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD and each.name in values]
    if taken:
        raise UsageError(
            "--set was not understood",
            problems=[f"{name}={values[name]}: {name} belongs to the command, not to a recipe" for name in taken],
            hint="the command's own options are in its --help",
        )
    return values


def _answer(facts: Any, as_json: bool, screen: Callable[[], Any]) -> None:
    """Print the answer: its facts as JSON, or the screen that shows them to a person."""
    if as_json:
        print(json.dumps(facts, indent=1, allow_nan=False))
        return
    from rich.console import Console

    Console(highlight=False).print(screen())


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _waiting(what: str) -> Any:
    """A spinner on a terminal's stderr while something takes a few seconds; nothing elsewhere."""
    from contextlib import nullcontext

    from rich.console import Console

    console = Console(stderr=True)
    return console.status(f"{what} …") if console.is_terminal else nullcontext()


def _process_started() -> float:
    """When this process began, by the monotonic clock: a session's limit counts from there, imports included."""
    import psutil

    return time.monotonic() - (time.time() - float(psutil.Process().create_time()))
