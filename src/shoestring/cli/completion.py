"""Shell completion of recipes, targets, options, settings and run directories; typer completes verbs and flags.

A function that returns nothing leaves the word to the shell, which completes paths.
"""

import os
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from shoestring.base.config import Field

Suggestion = tuple[str, str]
"""A completed word, and one line of help, which other shells than bash show."""

VARIABLE = "_SHOESTRING_COMPLETE"
"""The environment variable that asks for completions: `complete_bash`, `complete_zsh`, ... (set by typer's scripts)."""

_WORD_BREAKS = ("=", ":")

_DEPTH = 2
"""Run directories are searched for in the current directory and in this many levels below it."""

_MOST_FOLDERS = 2000
"""The search ends after this many folders, because the user is waiting."""


def recipe(incomplete: str) -> list[Suggestion]:
    """Complete the name of an installed recipe, without importing it."""
    from shoestring.recipe.installed import installed

    return [(name, recipes[0].package.origin) for name, recipes in installed().items() if name.startswith(incomplete)]


def target(incomplete: str) -> list[Suggestion]:
    """Complete the name of a target, without probing this machine."""
    from shoestring.hardware.targets import PROBED, known

    titles = PROBED | {name: target.device.title for name, target in known().items()}
    return [(name, title) for name, title in titles.items() if name.startswith(incomplete)]


def target_or_platform(incomplete: str) -> list[Suggestion]:
    """Complete what `plan` compares: the name of a target, or of a platform with several."""
    from shoestring.hardware.targets import groups

    platforms = [(name, f"all machines of {title}") for name, title in groups().items() if name.startswith(incomplete)]
    return [*platforms, *target(incomplete)]


def script(incomplete: str) -> list[Suggestion]:
    """Complete what can be rehearsed by its name: a launcher or an installed recipe. The shell completes paths."""
    launchers = [(name, "one process for each GPU") for name in ("torchrun", "accelerate")]
    return [*(item for item in launchers if item[0].startswith(incomplete)), *recipe(incomplete)]


def run_directory(incomplete: str) -> list[Suggestion]:
    """Complete the directory of a run below the current directory."""
    return [(path, "a run") for path in _run_directories() if path.startswith(incomplete)]


def assignment(ctx: typer.Context, incomplete: str) -> list[Suggestion]:
    """Complete KEY=VALUE of `--set`: an option of the recipe on the command line, or a setting.

    The values of a key without fixed choices are its default. A recipe file is not executed, so its own options are
    not completed.
    """
    # The command line ends with --set and no value, so typer has not assigned its arguments.
    fields = _fields(next(iter(ctx.args), None))
    key, separator, value = incomplete.partition("=")
    if separator:
        choices = _values(fields[key]) if key in fields else []
        return [(f"{key}={choice}", "") for choice in choices if choice.startswith(value)]
    names = [name for name in fields if name.startswith(key)]
    suggestions = [(f"{name}=", fields[name].help) for name in names]
    if len(names) == 1:
        # A single suggestion would be followed by a space. The shell inserts what these have in common: "KEY=".
        suggestions += [(f"{names[0]}={value}", "") for value in _values(fields[names[0]]) or ["none"]]
    return suggestions


def complete_in_bash(app: typer.Typer, environment: MutableMapping[str, str]) -> NoReturn:
    """Print the completions of the command line in bash's variables, and exit.

    bash splits words at "=" and ":" (COMP_WORDBREAKS) and replaces only what follows the last of them: `size=tiny`
    arrives as three words. So the words are joined for typer, and what they share with its completions is removed.
    """
    words, position = _join_words(environment["COMP_WORDS"].split("\n"), int(environment["COMP_CWORD"]))
    environment.update(COMP_WORDS="\n".join(words), COMP_CWORD=str(position))
    output = StringIO()
    with redirect_stdout(output), suppress(SystemExit):
        app()
    word = words[position]
    prefix = word[: max(word.rfind(character) for character in _WORD_BREAKS) + 1]
    sys.stdout.write("".join(f"{line.removeprefix(prefix)}\n" for line in output.getvalue().splitlines()))
    sys.exit(0)


def _join_words(words: list[str], position: int) -> tuple[list[str], int]:
    """Join the words around "=" and ":". Returns the words and the new position of the word at `position`."""
    joined: list[str] = []
    joined_position, after_break = 0, False
    for index, word in enumerate(words):
        is_break = word in _WORD_BREAKS
        if joined and (is_break or after_break):
            joined[-1] += word
        else:
            joined.append(word)
        after_break = is_break
        if index == position:
            joined_position = len(joined) - 1
    return joined, joined_position


def _fields(recipe: str | None) -> "dict[str, Field]":
    """Return the options of a built-in recipe, or those that every recipe has, and the settings."""
    from shoestring.base import config
    from shoestring.base.settings import Settings
    from shoestring.recipe.adaptation import Adaptation
    from shoestring.recipe.finding import find
    from shoestring.recipe.folds import FoldOption
    from shoestring.recipe.installed import built_in_names
    from shoestring.recipe.options import Common, option_fields

    is_built_in = recipe in built_in_names()
    common = config.fields(Common) | config.fields(FoldOption) | config.fields(Adaptation)
    options = option_fields(find(recipe)) if is_built_in else common
    return options | Settings.fields()


def _values(field: "Field") -> list[str]:
    """Return the values to suggest for an option or a setting: its choices, or its default."""
    values = field.choices or (() if field.default is None else (field.default,))
    return [str(value).lower() if isinstance(value, bool) else str(value) for value in values]


def _run_directories() -> Iterator[str]:
    """Yield the paths, relative to the current directory, of the run directories below it, in order."""
    folders, searched = [(Path(), 0)], 0
    while folders and searched < _MOST_FOLDERS:
        folder, depth = folders.pop(0)
        searched += 1
        if all(os.path.isfile(folder / name) for name in ("state.json", "plan.json")):  # noqa: PTH113 - never raises
            yield str(folder)
        elif depth < _DEPTH:
            try:
                entries = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
            except OSError:
                continue
            folders += [(folder / name, depth + 1) for name in entries if not name.startswith(".")]
