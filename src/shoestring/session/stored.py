"""plan.json and state.json of a run's directory: what they hold, read and checked in one place."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoestring import config
from shoestring.checkpoint.files import write_json
from shoestring.errors import UsageError
from shoestring.recipe.finding import choose, find
from shoestring.recipe.options import LoadedRecipe
from shoestring.settings import Settings

_COPY_AGAIN = "copy the run again from where it came"


@dataclass(frozen=True, kw_only=True)
class StoredPlan:
    """What was decided when the run began. A script with a trainer of its own has stored nothing but a name."""

    recipe: str = ""
    reference: str | None = None
    """What finds the recipe again; empty for an object that lived in a process."""
    digest: str | None = None
    """Of the recipe's file."""
    options: Mapping[str, Any] | None = None
    plan: Mapping[str, Any] | None = None
    """`Plan.json()`."""
    settings: Mapping[str, Any] | None = None
    """Of a script; those of a recipe are in `plan`."""

    @classmethod
    def of(cls, loaded: LoadedRecipe, plan: Mapping[str, Any]) -> StoredPlan:
        """The plan of a new run, as `Plan.json()` gives it."""
        return cls(
            recipe=loaded.name,
            reference=loaded.reference,
            digest=loaded.digest,
            options=config.as_json(loaded.options),
            plan=plan,
        )

    @classmethod
    def read(cls, file: Path) -> StoredPlan | None:
        """What the file holds; None if there is none.

        Raises UsageError when it cannot be read or is not a plan.
        """
        values = _read_object(file)
        if values is None:
            return None
        types = {"recipe": str, "reference": str, "digest": str, "options": dict, "plan": dict, "settings": dict}
        _require_types(file, values, types)
        return cls(**{name: values[name] for name in types if name in values})

    def write(self, file: Path) -> None:
        write_json(file, {name: value for name, value in vars(self).items() if value is not None})

    @property
    def planned_memory(self) -> Mapping[str, Any]:
        """The memory that was planned, as `Plan.json()` has it; empty if nothing was."""
        memory = (self.plan or {}).get("memory")
        return memory if isinstance(memory, dict) else {}

    def reopen(self, file: Path, values: Mapping[str, object], recipe: str | object | None = None) -> Reopened:
        """The run's recipe and settings with `values` set, and as the run has them.

        `recipe` is where the run's own is found now, by default where it was. `file` is named in errors.

        Raises UsageError for another recipe, for one that is not found, and for a plan that lacks something.
        """
        missing = [name for name in ("digest", "options", "plan", "reference") if getattr(self, name) is None]
        missing = sorted([*missing, *([] if self.recipe else ["recipe"])])
        if missing or self.options is None or self.plan is None or not isinstance(self.plan.get("settings"), dict):
            raise UsageError(f"{file} lacks {', '.join(missing) or 'settings'}", hint=_COPY_AGAIN)
        recipe = self._recipe(file.parent) if recipe is None else recipe
        if (name := find(recipe).name) != self.recipe:
            raise UsageError(
                f"{file.parent} is a run of {self.recipe}, not of {name}",
                hint="give another --run, or the recipe it was begun with",
            )
        stored, _ = choose(recipe, self.options)
        loaded, chosen = choose(recipe, {**self.options, **values})
        settings = Settings.from_json(self.plan["settings"])
        return Reopened(
            loaded=loaded,
            settings=settings.replace(**{name: getattr(chosen, name) for name in values if hasattr(chosen, name)}),
            stored=stored,
            is_same_file=loaded.digest == self.digest,
        )

    def _recipe(self, run: Path) -> str:
        """What finds the run's recipe where it was."""
        if not self.reference:
            raise UsageError(
                f"the recipe of {run} lived in a process that is gone: {self.recipe}",
                hint="shoestring.evaluate(DIR, recipe=...) in Python takes it again",
            )
        try:
            find(self.reference)
        except UsageError as error:
            raise UsageError(
                f"the recipe of {run} is not found where it was: {error.message}",
                problems=error.problems,
                hint="has its file moved? then say where it is: --recipe path/to/file.py",
            ) from error
        return self.reference


@dataclass(frozen=True, kw_only=True)
class Reopened:
    """A run's recipe and settings, as they are asked for now."""

    loaded: LoadedRecipe
    settings: Settings
    stored: LoadedRecipe
    """With the options that the run has."""
    is_same_file: bool
    """Whether the recipe's file is as it was when the run began."""


@dataclass(frozen=True, kw_only=True)
class StoredState:
    """How far the run is."""

    status: str = ""
    """`running`, `paused`, `finished` or `failed`."""
    update: int = 0
    total_updates: int = 0
    reason: str = ""
    next: str = ""
    """The command to type next."""
    metrics: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> StoredState | None:
        """What the file holds; None if there is none.

        Raises UsageError when it cannot be read or is not a state.
        """
        values = _read_object(file)
        if values is None:
            return None
        types = {each.name: type(each.default) for each in dataclasses.fields(cls)} | {"metrics": dict}
        _require_types(file, values, types)
        return cls(**{name: values[name] for name in types if name in values})

    def write(self, file: Path) -> None:
        write_json(file, dataclasses.asdict(self))


def _read_object(file: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {error}", hint=_COPY_AGAIN) from error
    if not isinstance(value, dict):
        raise UsageError(f"{file} holds no JSON object", hint=_COPY_AGAIN)
    return value


def _require_types(file: Path, values: Mapping[str, Any], types: Mapping[str, type]) -> None:
    """Raises UsageError naming every value that is there and of another type."""
    problems = [
        f"{name}: {str(values[name])[:40]!r} is no {expected.__name__}"
        for name, expected in types.items()
        if name in values and (not isinstance(values[name], expected) or isinstance(values[name], bool))
    ]
    if problems:
        raise UsageError(f"{file} is damaged", problems=problems, hint=_COPY_AGAIN)
