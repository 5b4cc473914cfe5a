"""The configuration file of a command, `--config run.toml`: a stored command line.

    recipe = "path/to/file.py"    # a recipe as on the command line
    on = "kaggle-t4"              # a target
    limit = "9h"                  # the length of a session
    disk = "15GB"                 # the disk space for the run's directory

    [set]                         # options of the recipe and settings, as with --set
    epochs = 5

Relative paths start from the working directory, as those of a command line do.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoestring.base.config import parse_pairs
from shoestring.base.errors import UsageError, nearest
from shoestring.base.reading import read_toml, real_path, reason
from shoestring.base.units import parse_bytes, parse_seconds
from shoestring.hardware import targets
from shoestring.recipe.finding import VerifiedReference, file_of, package_of
from shoestring.training.checkpoint.files import replace, write_text
from shoestring.training.run_directory import trust
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.location import find_run
from shoestring.training.run_directory.stored import StoredPlan

_SET = "set"
_HINT = 'write recipe, on, limit and disk as texts (on = "kaggle-t4"), and options and settings below the line [set]'


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """The content of a configuration file. Every value is the text that the command line would have."""

    path: Path
    recipe: str | None = None
    on: str | None = None
    limit: str | None = None
    disk: str | None = None
    values: Mapping[str, str] = field(default_factory=dict)
    """The options and settings of `[set]`."""

    def verified_recipe(self, runs: Iterable[Path], *, option: str = "") -> str | None:
        """Return the recipe as it may be executed, although only this file names it.

        A file in a run's directory, one of `runs` included, names none: the recipe's file then has to be trusted, and
        only its trusted content is executed; a package has to be that of the run. `option` is the option with which the
        command line would name it.

        Raises UsageError, which names the file that would be executed, if it is not trusted.
        """
        if not self.recipe:
            return self.recipe
        path = file_of(self.recipe)
        package = None if path else package_of(self.recipe)
        if path is None and (package is None or package.is_built_in):
            return self.recipe
        try:
            run = find_run(self.path, runs)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be used: {error}") from error
        if run is None:
            return self.recipe
        if path is None:
            stored = RunDirectory(run).plan() or StoredPlan(recipe=self.recipe, reference=self.recipe)
            stored.require_same_package(run, option=option)
            return self.recipe
        subject = f"{self.path}, a configuration file in the run's directory {run},"
        return VerifiedReference(self.recipe, trust.verified_contents(path, subject, option=option))

    @contextmanager
    def naming_in_errors(self, pairs: Iterable[str]) -> Iterator[None]:
        """Add to an error which of the values in it this file has; the command line has the values in `pairs`."""
        try:
            yield
        except UsageError as error:
            own = self.values.keys() - parse_pairs(pairs).keys()
            problems = [self._name_in(problem, own) for problem in error.problems]
            message = error.message
            if self.recipe and any(text in message for text in (repr(self.recipe), str(real_path(Path(self.recipe))))):
                message += f" (recipe in {self.path})"
            if (message, *problems) == (error.message, *error.problems):
                raise
            raise type(error)(message, problems=problems, hint=error.hint) from error

    def _name_in(self, problem: str, own: Iterable[str]) -> str:
        keys = [key for key in own if problem.startswith((f"{key}=", f"{key}:"))]
        return f"{problem} (in {self.path}: {keys[0]} = {json.dumps(self.values[keys[0]])})" if keys else problem


def read_config(path: Path) -> ConfigFile:
    """Read a configuration file.

    Raises UsageError with all problems: unknown keys with the most similar one, and values of a wrong type.
    """
    try:
        content = read_toml(path)
    except (OSError, ValueError) as error:
        message = f"the configuration file {path} cannot be read: {reason(error)}"
        raise UsageError(message, hint="pass a TOML file, such as the run.toml of a run") from error
    problems: list[str] = []
    texts: dict[str, str] = {}
    for key, value in content.items():
        if key == _SET:
            continue
        if key not in _PARSERS:
            problems.append(f"{key} = {_excerpt(value)}: unknown key; {nearest(key, [*_PARSERS, _SET])}")
            continue
        try:
            texts[key] = _text(value)
            _PARSERS[key](texts[key])
        except ValueError as error:
            problems.append(f"{key} = {_excerpt(value)}: {error}")
        except UsageError as error:
            problems.append(f"{key} = {_excerpt(value)}: {error.message}; {error.hint}")
    table = content.get(_SET, {})
    if isinstance(table, dict):
        values = _flatten(table, problems)
    else:
        values = {}
        problems.append(f"set = {_excerpt(table)}: expected a table, below the line [set]")
    if problems:
        raise UsageError(f"the configuration file {path} cannot be used", problems=problems, hint=_HINT)
    return ConfigFile(path=path, values=values, **texts)


def write_config(
    file: Path, values: Mapping[str, Any], *, recipe: str, on: str, limit_seconds: float | None, disk_bytes: int | None
) -> None:
    """Write the configuration file of a run with these options and settings.

    Raises OSError, and ValueError if a value is not a text in UTF-8.
    """
    lines = [f"# What this run was started with. The same again: shoestring train --config {file.name} --run OTHER"]
    lines += [f"recipe = {_toml(recipe)}", f"on = {_toml(on)}"]
    if limit_seconds is not None and limit_seconds >= 1e-3:
        lines.append(f"limit = {_toml(f'{limit_seconds:.3f}s')}")
    if disk_bytes:
        lines.append(f"disk = {_toml(f'{disk_bytes // 1000}.{disk_bytes % 1000:03d}KB')}")
    lines += ["", "[set]", *(f"{name} = {_toml(value)}" for name, value in values.items())]
    text = "".join(f"{line}\n" for line in lines)
    text.encode()
    replace(file, lambda temporary: write_text(temporary, text))


def _any_text(text: str) -> None:
    """Accept a recipe, which is looked for when it is known whether the command line names another one."""
    if not text:
        raise ValueError('expected a name or a path, such as "temporal"')


def _target(text: str) -> None:
    if text not in targets.PROBED:
        targets.find(text)


_PARSERS: dict[str, Callable[[str], object]] = {
    "recipe": _any_text,
    "on": _target,
    "limit": parse_seconds,
    "disk": parse_bytes,
}
"""The keys, and functions that raise ValueError or UsageError for a value that cannot be used."""


def _flatten(table: Mapping[str, Any], problems: list[str], prefix: str = "") -> dict[str, str]:
    """Return options and settings as texts. A dotted key, such as `lora.r`, is a table in TOML."""
    values: dict[str, str] = {}
    for key, value in table.items():
        name = prefix + key.replace(".", "_")
        if isinstance(value, dict):
            entries = _flatten(value, problems, f"{name}_")
        else:
            try:
                entries = {name: _text(value)}
            except ValueError as error:
                problems.append(f"{name} = {_excerpt(value)}: {error}")
                continue
        problems += [f"{name} is set twice: {values[name]!r} and {entries[name]!r}" for name in values & entries.keys()]
        values |= entries
    return values


def _text(value: object) -> str:
    """Return a value as the command line has it. Raises ValueError for a list, a table or a date."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError("expected a text, a number, true or false")


def _excerpt(value: object) -> str:
    return (json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool | int | float) else str(value))[:80]


def _toml(value: object) -> str:
    """Return a value in TOML, whose texts are those of JSON but for one control character."""
    if isinstance(value, bool | int | float):
        return _text(value)
    text = "none" if value is None else str(value)
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
