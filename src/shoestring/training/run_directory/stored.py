"""The files plan.json and state.json of a run's directory: their content, reading, validation and writing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoestring.base import config, shell
from shoestring.base.errors import UsageError
from shoestring.base.packages.origin import pip_install
from shoestring.base.reading import COUNT, OBJECT, TEXT, Kind, find_problems, number, read_json
from shoestring.base.settings import Settings
from shoestring.base.units import KIB, plural
from shoestring.recipe.finding import (
    as_finetune,
    choose,
    file_of,
    find,
    is_hugging_face,
    package_of,
    recipe_for_data,
)
from shoestring.recipe.installed import Package
from shoestring.recipe.options import LoadedRecipe
from shoestring.training.checkpoint.files import json_digest, json_text, matches_digest, with_digest, write_json
from shoestring.training.checkpoint.identity import RunIdentity, is_id, new_id
from shoestring.training.checkpoint.reserved import replace_text, reserve
from shoestring.training.run_directory import trust
from shoestring.training.session.outcome import Outcome

START_AGAIN = "nothing of the run is stored yet: the same command starts it"
"""The next step before the plan, which has the options of the run, is stored: without them, another run would start."""

_COPY_AGAIN = "copy the run again from its source"
_REASON_BYTES = 16 * KIB  # for the reason why a session ended
_PLAN_KINDS = {
    "recipe": TEXT,
    "reference": TEXT,
    "digest": TEXT,
    "imports": OBJECT,
    "package": OBJECT,
    "options": OBJECT,
    "plan": OBJECT,
    "settings": OBJECT,
    "run": TEXT,
    "named_at": COUNT,
}
_STATE_KINDS = {
    "status": TEXT,
    "update": COUNT,
    "total_updates": COUNT,
    "reason": TEXT,
    "next": TEXT,
    "metrics": OBJECT,
    "test_weights": TEXT,
    "run": TEXT,
}
STATE_KEYS = frozenset(_STATE_KINDS)


@dataclass(frozen=True, kw_only=True)
class StoredPlan:
    """The plan that was made when the run started. A script with its own trainer stores only a name and settings."""

    recipe: str = ""
    reference: str | None = None
    """The location of the recipe; empty for an object that existed only in a process."""
    digest: str | None = None
    """The digest of the recipe's file."""
    imports: Mapping[str, str] | None = None
    """The digests of the files beside it that it imports."""
    package: Mapping[str, Any] | None = None
    """The distribution and version of the package that has the recipe, unless it is built-in."""
    options: Mapping[str, Any] | None = None
    plan: Mapping[str, Any] | None = None
    """`Plan.json()`."""
    settings: Mapping[str, Any] | None = None
    """The settings of a script; those of a recipe are in `plan`."""
    run: str | None = None
    """The id of the run (`checkpoint/identity.py`); None for one that an earlier version began."""
    named_at: int | None = None
    """The update at which a run of an earlier version got its id: its files up to then name no run."""
    is_changed: bool = False
    """Whether the file has changed since it was written, by a fault of the disk or by hand."""
    is_result_changed: bool = False
    """Whether the options, the plan or the settings have, which decide the training result."""

    @classmethod
    def from_recipe(cls, loaded: LoadedRecipe, plan: Mapping[str, Any], *, run: str | None = None) -> StoredPlan:
        """Return the stored plan of a new run from `Plan.json()`; `run` is its id."""
        return cls(
            run=run,
            recipe=loaded.name,
            reference=loaded.reference,
            digest=loaded.digest,
            imports=loaded.imports or None,
            package=vars(loaded.foreign_package) if loaded.foreign_package else None,
            options=config.as_json(loaded.options),
            plan=plan,
        )

    @classmethod
    def read(cls, file: Path) -> StoredPlan | None:
        """Read the plan from `file`; return None if the file does not exist.

        Raises UsageError if it cannot be read or is not a plan.
        """
        values = _read_object(file)
        if values is None:
            return None
        _require_kinds(file, values, _PLAN_KINDS)
        if not is_id(values.get("run", new_id())):
            raise UsageError(f"{file} is damaged", problems=["run: it is not the id of a run"], hint=_COPY_AGAIN)
        return cls(
            **{name: values[name] for name in _PLAN_KINDS if name in values},
            is_changed="sha256" in values and not matches_digest(values),
            is_result_changed=values.get("options_sha256") not in (None, _options_digest(values)),
        )

    def write(self, file: Path) -> None:
        values = {name: value for name, value in vars(self).items() if value is not None and not name.startswith("is_")}
        write_json(file, with_digest(values | {"options_sha256": _options_digest(values)}))

    @property
    def identity(self) -> RunIdentity | None:
        """What the files of the run name it by; None for a run of an earlier version."""
        return RunIdentity(id=self.run, recipe=self.recipe, options=dict(self.options or {})) if self.run else None

    @property
    def planned_memory(self) -> Mapping[str, Any]:
        """The planned memory as in `Plan.json()`, with the parts that have a name and a size; empty without a plan."""
        memory = (self.plan or {}).get("memory")
        if not isinstance(memory, dict):
            return {}
        settings, parts = memory.get("settings"), memory.get("parts")
        return {
            **memory,
            "settings": settings if isinstance(settings, dict) else {},
            "parts": [part for part in (parts if isinstance(parts, list) else []) if _is_memory_part(part)],
        }

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes on how the plan was made, for each session: that nothing in it is predicted, and why."""
        note = (self.plan or {}).get("not_estimated")
        return (note,) if isinstance(note, str) else ()

    def reopen(self, file: Path, values: Mapping[str, object], recipe: str | object | None = None) -> Reopened:
        """Load the run's recipe and settings, both as stored and with `values` set.

        `recipe` is the recipe or its present location, by default the stored location, whose file has to be trusted.
        `file` is named in errors.

        Raises UsageError for another recipe, for one that is not found or not trusted, and for an incomplete plan.
        """
        missing = [name for name in ("digest", "options", "plan", "reference") if getattr(self, name) is None]
        missing = sorted([*missing, *([] if self.recipe else ["recipe"])])
        if missing or self.options is None or self.plan is None or not isinstance(self.plan.get("settings"), dict):
            raise UsageError(f"{file} lacks {', '.join(missing) or 'settings'}", hint=_COPY_AGAIN)
        if is_hugging_face(recipe) and self.recipe == recipe_for_data():  # its name with the option data
            recipe, values = as_finetune(recipe, values)
        if recipe is None:
            default_recipe = self._find_recipe(file.parent)
        else:
            self.require_installed(recipe, file.parent)
            default_recipe = find(recipe, is_new=False)
        if default_recipe.name != self.recipe:
            raise UsageError(
                f"{file.parent} is a run of {self.recipe}, not of {default_recipe.name}",
                hint="give the recipe that the run was started with; its file may move, but keeps its name",
            )
        try:
            (stored_recipe, _) = choose(default_recipe, self.options, stored=True)
            settings = Settings.from_json(self.plan["settings"])
        except UsageError as error:
            raise UsageError(
                f"{file} does not fit the recipe {self.recipe}: {error.message}",
                problems=error.problems,
                hint=f"{_COPY_AGAIN}; if the recipe's options have changed since the run started, change them back",
            ) from error
        loaded, chosen = choose(default_recipe, {**self.options, **values}, stored=True)
        if "logical_shards" not in values:
            sharding = chosen.sharding or settings.sharding
            _require_divisor(chosen.gpus and chosen.replace(sharding=sharding).processes, settings.logical_shards)
        return Reopened(
            loaded=loaded,
            settings=settings.replace(**{name: getattr(chosen, name) for name in values if hasattr(chosen, name)}),
            stored=stored_recipe,
            changes=self._changes(loaded),
        )

    def _changes(self, loaded: LoadedRecipe) -> tuple[str, ...]:
        """Describe how the recipe's code has changed since the run started."""
        if loaded.foreign_package != self._package:
            return (f"the recipe is now of {loaded.package}, and the run of {self._package or 'no package'}",)
        imports = self.imports or {}
        names = sorted(imports.keys() | loaded.imports.keys())
        changed = [str(loaded.path)] if loaded.digest != self.digest else []
        folder = loaded.path.parent if loaded.path else Path()
        changed += [str(folder / name) for name in names if imports.get(name) != loaded.imports.get(name)]
        return tuple(f"the recipe's file has changed since the run started: {path}" for path in changed)

    @property
    def _package(self) -> Package | None:
        return None if self.package is None else Package.from_json(self.package)

    def require_installed(self, recipe: str | object, run: Path) -> None:
        """Raise UsageError if `recipe` is the name of the run's recipe, whose package is not installed."""
        if recipe == self.recipe and self._package and package_of(self.recipe) is None:
            raise UsageError(
                f"{run} was trained with the recipe {self.recipe} of {self._package}, which is not installed here",
                hint=pip_install(self._package.requirement),
            )

    def require_same_package(self, run: Path, *, option: str) -> None:
        """Raise UsageError unless the name of the run's recipe is that of the same package in the same version.

        `option` is the option with which a command can name the recipe in spite of that.
        """
        self.require_installed(self.recipe, run)
        package = package_of(self.reference or "")
        foreign = None if package and package.is_built_in else package
        if foreign != self._package or (self._package and self.reference != self.recipe):
            raise UsageError(
                f"the recipe {self.recipe} of {run} is of {self._package or 'no package'}, and here of {package}",
                hint=f"{pip_install(self._package.requirement)}; or name the recipe: {option}{self.recipe}"
                if self._package
                else f"if this recipe is meant, name it: {option}{self.recipe}",
            )

    def _find_recipe(self, run: Path) -> LoadedRecipe:
        """Return the recipe at the stored reference.

        Raises UsageError if it does not lead to the recipe any more, or to a file that is not trusted.
        """
        if not self.reference:
            raise UsageError(
                f"the recipe of {run} was an object in a Python process that has ended: {self.recipe}",
                hint="pass it in Python: shoestring.evaluate(DIR, recipe=...)",
            )
        try:
            path = file_of(self.reference)
        except UsageError as error:
            raise self._missing(run, error) from error
        verified = None
        if path:
            verified = trust.verified_contents(path, f"the run in {run}", option="--recipe ")
        elif not is_hugging_face(self.reference):
            self.require_same_package(run, option="--recipe ")
        try:
            return find(self.reference, verified=verified, is_new=False)
        except UsageError as error:
            raise self._missing(run, error) from error

    def _missing(self, run: Path, error: UsageError) -> UsageError:
        return UsageError(
            f"the recipe of {run} is not at its stored location: {error.message}",
            problems=error.problems,
            hint="if its file has moved, give its new location: --recipe path/to/file.py",
        )


@dataclass(frozen=True, kw_only=True)
class Reopened:
    """A run's recipe and settings, as requested now."""

    loaded: LoadedRecipe
    settings: Settings
    stored: LoadedRecipe
    """The recipe with the stored options of the run."""
    changes: tuple[str, ...]
    """How the recipe's code has changed since the run started: its file, the files that it imports, or its package."""


@dataclass(frozen=True, kw_only=True)
class StoredState:
    """The progress of the run."""

    status: str = ""
    """`running`, `paused`, `finished` or `failed`."""
    update: int = 0
    total_updates: int = 0
    reason: str = ""
    next: str = ""
    """The next command to run."""
    metrics: dict[str, Any] = field(default_factory=dict)
    test_weights: str = ""
    """Which weights the test metrics are of; empty without test metrics."""
    run: str = ""
    """The id of the run; empty in one of an earlier version."""

    @classmethod
    def read(cls, file: Path) -> StoredState | None:
        """Read the state from `file`; return None if the file does not exist.

        Raises UsageError if it cannot be read or is not a state.
        """
        values = _read_object(file)
        if values is None:
            return None
        _require_kinds(file, values, _STATE_KINDS)
        metrics = values.get("metrics", {})
        _require_kinds(file, metrics, dict.fromkeys(metrics, OBJECT))
        return cls(**{name: values[name] for name in _STATE_KINDS if name in values})

    def json(self) -> dict[str, Any]:
        """Return the content of state.json."""
        values = dataclasses.asdict(self)
        return values if self.run else {name: value for name, value in values.items() if name != "run"}

    def write(self, file: Path) -> None:
        write_json(file, self.json())

    def write_running(self, file: Path) -> None:
        """Write the state of a session that is running, and reserve the space to replace it on a full disk.

        Raises OSError.
        """
        reserve(file, _REASON_BYTES + 2 * len(json_text(self.json())))
        self.write(file)

    def write_end(self, file: Path) -> None:
        """Write the state at the end of a session, in the reserved space if the disk is full. Raises OSError."""
        replace_text(file, json_text(self.json()))

    def outcome(self) -> Outcome:
        """Return the outcome of the session that wrote this state at its end."""
        return Outcome(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Outcome)})


def resume_command(recipe: str, run: Path, target: str = "local", *, allow_cpu: bool = False, folds: int = 1) -> str:
    """Return the command that continues the run of a recipe, given by its name or path.

    `allow_cpu` is of a run that may have no plan yet: one that was planned for the CPU does not need it. A run that is
    one of several `folds` is continued together with the others, in the folder of all.
    """
    options = [] if target == "local" else ["--on", target]
    options += ["--allow-cpu"] if allow_cpu else []
    of_all = ["--folds", str(folds)] if folds > 1 else []
    return shell.join(["shoestring", "train", recipe, *of_all, "--run", run.parent if of_all else run, *options])


def _require_divisor(gpus: int | None, logical_shards: int | None) -> None:
    """Raise UsageError if so many processes cannot continue a run that was planned with so many logical shards."""
    if gpus and logical_shards and logical_shards % gpus:
        counts = [str(1 << power) for power in range(logical_shards.bit_length())]
        raise UsageError(
            f"gpus={gpus}: the run was planned with {plural(logical_shards, 'logical shard')}, and each process "
            "computes at least one",
            hint=f"continue it with gpus={' or '.join(counts)}, or train another run: --run runs/NAME",
        )


def _is_memory_part(part: object) -> bool:
    return isinstance(part, dict) and isinstance(part.get("name"), str) and number(part.get("bytes")) is not None


def _options_digest(values: Mapping[str, Any]) -> str:
    return json_digest({name: values.get(name) for name in ("options", "plan", "settings")})


def _read_object(file: Path) -> dict[str, Any] | None:
    try:
        value = read_json(file, paths=True)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {error}", hint=_COPY_AGAIN) from error
    if not isinstance(value, dict):
        raise UsageError(f"{file} does not contain a JSON object", hint=_COPY_AGAIN)
    return value


def _require_kinds(file: Path, values: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None:
    """Raise UsageError naming every present value that is of another kind."""
    if problems := find_problems(values, kinds):
        raise UsageError(f"{file} is damaged", problems=problems, hint=_COPY_AGAIN)
