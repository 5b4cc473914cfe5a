"""Rehearsals: a script on simulated GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shoestring.api.arguments import checked_path, require_limits
from shoestring.base.errors import UsageError, nearest
from shoestring.base.packages.broken import explained_imports

if TYPE_CHECKING:
    from shoestring.hardware.catalog import Target
    from shoestring.runs.rehearse.prepared import PreparedRehearsal
    from shoestring.runs.rehearse.rehearsal import Rehearsal
    from shoestring.runs.rehearse.request import Progress

_VALUES = ("auto", "none", "all")
_LAUNCHERS = ("torchrun", "accelerate")
_SUFFIXES = (".py", ".ipynb", "")
_EXAMPLE = "shoestring rehearse SCRIPT.py --on kaggle-t4x2"


@explained_imports()
def rehearse(
    script: str | Path | None = None,
    on: str = "kaggle-t4x2",
    *,
    module: str | None = None,
    recipe: str | None = None,
    arguments: Sequence[str] = (),
    updates: int | None = None,
    total_updates: int | None = None,
    values: Literal["auto", "none", "all"] = "auto",
    stack: str | None = None,
    limit_seconds: float | None = None,
    out: str | Path | None = None,
    stdout_to_stderr: bool = False,
    say: Callable[[str], object] = lambda _: None,
    progress: Callable[[Progress], object] = lambda _: None,
    **options: object,
) -> Rehearsal:
    """Run a script, unmodified, with PyTorch's own allocator on the simulated GPUs of a target, and say what became.

    `script` is a Python file, a notebook, `torchrun` or `accelerate` with their own `arguments`, or the name of a
    recipe; in its place `module` is what `python -m` runs, and `recipe` a recipe's name or file, whose options and
    settings are `options`. It ends by itself or after `updates` optimizer steps; its time is predicted for
    `total_updates` if it does not tell their number. `values` is which values are computed: those of small tensors
    (`auto`), all or none. With a `stack`, the versions of a platform's image are used, after `prepare_rehearsal`.
    `limit_seconds` of a session replace the platform's limit. The folder `out` gets the answer as JSON and as a page,
    and the time line of memory. `say` is called with what is done before the script begins, `progress` with how far it
    is. Ctrl-C ends the script, and the answer is of what was rehearsed.

    Raises UsageError for invalid usage and if this machine lacks what `prepare_rehearsal` installs, RunError if the
    simulator cannot be compiled. A script that fails is an answer.
    """
    from shoestring.answers.rehearsal.files import require_folder, write
    from shoestring.runs.rehearse.rehearse import rehearse
    from shoestring.runs.rehearse.request import RehearsalRequest, command_line
    from shoestring.runs.rehearse.source_lines import with_source_lines

    require_limits(limit_seconds=limit_seconds)
    _require_counts(updates=updates, total_updates=total_updates)
    if values not in _VALUES:
        raise UsageError(f"--values {values}: there are no such values", hint=nearest(str(values), _VALUES))
    subject = _subject(script, module, recipe, options)
    target = _target(on, limit_seconds)
    _require_stack(stack)
    folder = checked_path(out) if out is not None else None
    if folder is not None:
        require_folder(folder)
    seconds = limit_seconds
    if seconds is None and target.platform and target.platform.session_hours:
        seconds = target.platform.session_hours * 3600
    command = command_line(
        _words(subject),
        on,
        tuple(arguments),
        {
            "--updates": updates,
            "--total-updates": total_updates,
            "--values": None if values == "auto" else values,
            "--stack": stack,
            "--limit": limit_seconds,
            "--set": [f"{name}={value}" for name, value in options.items()],
        },
    )
    request = RehearsalRequest(
        **subject,
        set_values=options,
        arguments=tuple(arguments),
        target=target,
        updates=updates,
        total_updates=total_updates,
        values=values,
        stack=stack,
        session_seconds=seconds,
        json=stdout_to_stderr,
        command=command,
    )
    rehearsal = with_source_lines(rehearse(request, say=say, progress=progress))
    if folder is not None:
        write(rehearsal, folder)
    return rehearsal


@explained_imports()
def prepare_rehearsal(stack: str | None = None, *, say: Callable[[str], object] = lambda _: None) -> PreparedRehearsal:
    """Install what rehearsals in this environment need, or the versions of the image of a `stack`, once.

    That is PyTorch's default wheel, without CUDA's libraries, if this environment has a CPU build; no GPU is needed.
    `say` is called with what is installed.

    Raises UsageError if this environment cannot be used for rehearsals, RunError if an installation fails.
    """
    from shoestring.planning.simulator.prepare import prepare
    from shoestring.runs.rehearse.prepared import PreparedRehearsal

    _require_stack(stack)
    build = prepare(stack, say)
    return PreparedRehearsal(stack=stack, torch=build.version, folder=str(build.folder))


def _require_counts(**counts: int | None) -> None:
    problems = [
        f"--{name.replace('_', '-')} {count}" for name, count in counts.items() if count is not None and count < 1
    ]
    if problems:
        raise UsageError(f"{', '.join(problems)}: updates count from 1", hint="leave it out for all updates")


def _require_stack(stack: str | None) -> None:
    from shoestring.planning.simulator.stacks import STACKS

    if stack is not None and stack not in STACKS:
        raise UsageError(f"there is no stack {stack!r}", hint=nearest(stack, STACKS))


def _target(on: str, limit_seconds: float | None) -> Target:
    """Return the target. Raises UsageError if it has no GPU to simulate."""
    from shoestring.hardware.targets import find, with_limits

    target = with_limits(find(on), session_seconds=limit_seconds)
    if not target.gpus:
        raise UsageError(f"--on {on}: there is no GPU to simulate", hint="--on kaggle-t4x2, or the name of a GPU")
    return target


def _subject(
    script: str | Path | None, module: str | None, recipe: str | None, options: Mapping[str, object]
) -> dict[str, Any]:
    """Return what is rehearsed, as the fields of a request. Raises UsageError if that is not one thing that exists."""
    named = {"SCRIPT": script, "-m": module, "--recipe": recipe}
    chosen = [name for name, value in named.items() if value is not None]
    if len(chosen) > 1:
        raise UsageError(
            f"{' and '.join(chosen)} were given, and a rehearsal is of one of them",
            hint="the script's own arguments follow --",
        )
    if not chosen:
        raise UsageError("there is nothing to rehearse", hint=_EXAMPLE)
    subject = _script(script) if script is not None else _module(module) if module is not None else _recipe(recipe)
    if options and not ("recipe" in subject or "recipe_file" in subject):
        pairs = " ".join(f"--set {name}={value}" for name, value in options.items())
        raise UsageError(
            f"{pairs}: only a recipe has options and settings",
            hint="the arguments of a script follow --, such as: shoestring rehearse train.py -- --lr 3e-4",
        )
    if "recipe" in subject or "recipe_file" in subject:
        from shoestring.recipe.finding import choose

        choose(str(subject.get("recipe") or subject["recipe_file"]), options)
    return subject


def _module(module: str | None) -> dict[str, Any]:
    if not module:
        raise UsageError("-m names no module", hint="shoestring rehearse -m PACKAGE.MODULE -- ARGUMENTS")
    return {"module": module}


def _recipe(recipe: str | None) -> dict[str, Any]:
    from shoestring.recipe.finding import file_of

    name = str(recipe)
    return {"recipe_file": checked_path(name)} if file_of(name) else {"recipe": name}


def _script(script: str | Path) -> dict[str, Any]:
    """Return a script or a notebook that exists, a launcher, or the recipe of a name."""
    from shoestring.base.reading import is_file
    from shoestring.recipe.finding import is_hugging_face
    from shoestring.recipe.installed import installed

    text, path = str(script), checked_path(script)
    if text in _LAUNCHERS:
        return {"module": text}
    if is_hugging_face(text) or text in installed():
        return {"recipe": text}
    if is_file(path):
        if path.suffix not in _SUFFIXES:
            raise UsageError(f"{path} is not a script", hint="name a Python file or a notebook (.ipynb)")
        return {"script": path}
    if path.is_dir():
        raise UsageError(f"{path} is a folder, not a script", hint=f"name a file in it: {_EXAMPLE}")
    folder = path.parent
    scripts = [str(file) for file in sorted(folder.glob("*.py"))[:200]] if folder.is_dir() else []
    near = nearest(text, [*scripts, *_LAUNCHERS, *installed()])
    hint = near if near.startswith("did you mean") else "a path begins at the current folder; -m takes a module"
    raise UsageError(f"there is no script {text!r}", hint=hint)


def _words(subject: Mapping[str, Any]) -> list[str]:
    """Return the words of a command line for what is rehearsed."""
    if module := subject.get("module"):
        return [module] if module in _LAUNCHERS else ["-m", module]
    if file := subject.get("recipe_file"):
        return ["--recipe", str(file)]
    return [str(subject.get("recipe") or subject["script"])]
