"""A script on simulated GPUs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from shoestring import api
from shoestring.base import streams
from shoestring.base.errors import UsageError
from shoestring.base.units import bytes_text, count_text, parse_seconds, plural, seconds_text
from shoestring.cli import completion
from shoestring.cli.config import Command
from shoestring.cli.options import Json, Set, option_values, parse
from shoestring.cli.output import print_answer

_LINE_SECONDS = 15.0
"""Between two lines of progress where no terminal shows one that changes."""
_REDRAW_SECONDS = 0.5
_BAR = 20


class WithArguments(Command):
    """A command whose line ends with `-- ARGUMENTS` of another program, which are not its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what is before `--`. Raises UsageError if there are arguments that should be after it."""
        end = args.index("--") if "--" in args else len(args)
        own, of_script = args[:end], args[end + 1 :]
        hint = f"the script's own arguments follow --: shoestring rehearse SCRIPT.py {' '.join(_options(own))} -- ..."
        try:
            unparsed = super().parse_args(ctx, own)
        except Exception as error:
            name, possible = getattr(error, "option_name", None), getattr(error, "possibilities", None)
            if name is None or not hasattr(error, "possibilities"):
                raise
            near = f"did you mean {' or '.join(possible)}?; " if possible else ""
            raise UsageError(f"there is no option {name}", hint=near + " ".join(hint.split())) from error
        if misplaced := ctx.params.get("arguments"):
            raise UsageError(f"{' '.join(misplaced)}: stands before --", hint=" ".join(hint.split()))
        ctx.params["arguments"] = of_script
        return unparsed

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Without --json, the script's standard output is that of the command."""
        return super().invoke(ctx) if ctx.params.get("as_json") else TyperCommand.invoke(self, ctx)


def rehearse(
    script: Annotated[
        str | None,
        typer.Argument(
            metavar="SCRIPT",
            help="A Python file, a notebook (.ipynb), torchrun or accelerate, or the name of a recipe.",
            autocompletion=completion.script,
        ),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- ARGUMENTS", help="What follows -- are the arguments of the script."),
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="TARGET",
            help="The machine whose GPUs are simulated; `shoestring targets` lists them.",
            autocompletion=completion.target,
        ),
    ] = "kaggle-t4x2",
    module: Annotated[
        str | None, typer.Option("-m", metavar="MODULE", help="Rehearse a module, as python -m runs it.")
    ] = None,
    recipe_file: Annotated[
        str | None,
        typer.Option(
            "--recipe", metavar="RECIPE", help="Rehearse a recipe: path/to/file.py.", autocompletion=completion.recipe
        ),
    ] = None,
    updates: Annotated[
        int | None, typer.Option(metavar="N", help="End the script after so many optimizer steps.")
    ] = None,
    total_updates: Annotated[
        int | None,
        typer.Option(metavar="N", help="The number of updates to predict the time of, if the script does not tell."),
    ] = None,
    values: Annotated[
        str,
        typer.Option(
            metavar="VALUES",
            help="Which values are computed: auto (those of small tensors), all, which is slow, or none.",
        ),
    ] = "auto",
    stack: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Use the versions of a platform's image: kaggle or colab."),
    ] = None,
    limit: Annotated[
        str | None, typer.Option(metavar="DURATION", help="The length of a session, such as 90s, 20m or 9h.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write rehearsal.json, rehearsal.html and memory.csv into this new folder."),
    ] = None,
    prepare: Annotated[
        bool,
        typer.Option("--prepare", help="Instead of rehearsing, install what it needs, once: PyTorch with CUDA."),
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Print everything: the whole stack, all that held memory, all assumptions.")
    ] = False,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Run a script, unmodified, on simulated GPUs: does it fit, where does memory run out, how long will it take.

    No GPU is needed. PyTorch's own allocator decides about memory, kernels do nothing, and time is predicted. The
    status is 0 also if memory runs out, and 1 if the script fails in another way. Ctrl-C ends it with the answer so
    far.
    """
    if prepare:
        subjects = [name for name, value in (("SCRIPT", script), ("-m", module), ("--recipe", recipe_file)) if value]
        if subjects or arguments:
            hint = "shoestring rehearse --prepare" + (f" --stack {stack}" if stack else "")
            raise UsageError(f"--prepare is given alone, without {(subjects or ['--'])[0]}", hint=hint)
        _prepare(stack, as_json)
        return
    from shoestring.answers.rehearsal import document as answers

    with _show_progress() as (say, progress):
        rehearsal = api.rehearse(
            script,
            on,
            module=module,
            recipe=recipe_file,
            arguments=arguments or (),
            updates=updates,
            total_updates=total_updates,
            values=values,  # type: ignore[arg-type]  # the verb checks it
            stack=stack,
            limit_seconds=parse("--limit", limit, parse_seconds),
            out=out,
            stdout_to_stderr=as_json,
            say=say,
            progress=progress,
            **option_values(api.rehearse, set_, None),
        )
    print_answer(rehearsal.json(), as_json, lambda: answers.document(rehearsal) if full else answers.summary(rehearsal))
    if rehearsal.end in ("failed", "host memory"):
        raise typer.Exit(1)


def _prepare(stack: str | None, as_json: bool) -> None:
    from shoestring.answers.rehearsal.prepared import document

    prepared = api.prepare_rehearsal(stack, say=streams.write_messages)
    print_answer(prepared.json(), as_json, lambda: document(prepared))


def _options(words: list[str]) -> list[str]:
    """Return the first option `--on TARGET` of a command line, for an example of how to write it."""
    place = words.index("--on") if "--on" in words else -1
    return words[place : place + 2] if place >= 0 else []


@contextmanager
def _show_progress() -> Iterator[tuple[Callable[[str], None], Callable[[Any], None]]]:
    """Show on stderr how far a rehearsal is, by functions for what is said before the script begins and for progress.

    On a terminal one line changes, and what the script prints is written over it; otherwise a line follows about every
    15 seconds.
    """
    from shoestring.answers.renderers.terminal.console import SafeConsole

    console = SafeConsole(stderr=True)
    pause = _REDRAW_SECONDS if console.is_terminal else _LINE_SECONDS
    last = monotonic() - pause

    def say(text: str) -> None:
        nonlocal last
        if monotonic() - last < pause:
            return
        last = monotonic()
        if console.is_terminal:
            line = streams.one_line(text)[: console.width - 1]
            _write_over(console, f"{line}\x1b[K\r")  # the script's next line begins where this one does
        else:
            streams.write_messages(text)

    try:
        yield say, lambda progress: say(_progress_text(progress, with_bar=console.is_terminal))
    finally:
        if console.is_terminal:
            _write_over(console, "\x1b[K")


def _write_over(console: Any, text: str) -> None:
    stream = streams.ReportStream(console.file)
    stream.write(text)
    stream.flush()


def _progress_text(progress: Any, *, with_bar: bool) -> str:
    """Return the phase, the updates, the memory of the fullest GPU and the time."""
    updates = plural(progress.updates, "update")
    if progress.total_updates:
        updates = f"{count_text(progress.updates)} of {count_text(progress.total_updates)} updates"
    share = min(1.0, progress.reserved_bytes / max(1, progress.capacity_bytes))
    filled = round(share * _BAR)
    bar = f"{'█' * filled}{'░' * (_BAR - filled)} " if with_bar else ""
    memory = f"{bar}{bytes_text(progress.reserved_bytes)} of {bytes_text(progress.capacity_bytes)}"
    return f"{progress.phase}, {updates}, {memory}, {seconds_text(progress.seconds)}"
