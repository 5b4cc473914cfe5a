"""A run in three phases, each with its command line: a smoke test, a pilot, and the full run."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shoestring import config
from shoestring.estimate.span import total
from shoestring.hardware import targets
from shoestring.hardware.catalog import Platform, Target
from shoestring.plan.counts import Counts
from shoestring.plan.sessions import Work, session_parts
from shoestring.plan.weight_type import with_weight_type
from shoestring.recipe.options import LoadedRecipe, with_defaults
from shoestring.settings import Settings

SMOKE_UPDATES = 20
PILOT_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A command to run, how long it takes, and its purpose."""

    name: str
    """Its name, such as "smoke test"."""
    command: str
    """The command to type."""
    seconds: float | None
    """The duration including starting and stopping; None if the time is unknown."""
    tells: str
    """What the phase shows."""

    def json(self) -> dict[str, Any]:
        return asdict(self)


def phases(
    loaded: LoadedRecipe, requested: Settings, target: Target, *, counts: Counts, work: Work | None
) -> list[Phase]:
    """Return the phases that make sense: no pilot for a short run; no phases for a recipe that cannot be trained.

    `work` is what the run does, None if its time is unknown.
    """
    if loaded.is_live or not counts.per_epoch:
        return []
    samples = counts.samples["train"]
    planned = []

    def seconds_of(updates: int, epochs: float) -> float | None:
        if work is None:
            return None
        return total(session_parts(work, updates, epochs).values()).seconds

    total_seconds = seconds_of(counts.total, counts.total / counts.per_epoch)
    smoke_updates = min(SMOKE_UPDATES, counts.per_epoch)
    smoke = min(samples, -(-samples * smoke_updates // counts.per_epoch))
    if smoke < samples or loaded.epochs > 1:
        part = {"subset": smoke} if smoke < samples else {}
        planned.append(
            Phase(
                name="smoke test",
                command=_command("train", loaded, requested, target, "smoke", {"epochs": 1, **part}),
                seconds=seconds_of(smoke_updates, 1),
                tells="checks that the data, the model, saving and evaluation work on the target, and measures the "
                "time of an update",
            )
        )
    if work is not None and total_seconds is not None and total_seconds > 2 * PILOT_SECONDS:
        share = PILOT_SECONDS / total_seconds
        if loaded.max_updates is None:
            pilot = max(smoke, round(samples * share))
            part = {"subset": pilot}
            updates = max(1, round(counts.total * pilot / samples))
            seconds = seconds_of(updates, loaded.epochs)
            schedule = "on a stratified part of the data"
        else:
            updates = max(1, round(counts.total * share))
            part, schedule = {"max_updates": updates}, "in fewer updates"
            seconds = seconds_of(updates, updates / counts.per_epoch)
        planned.append(
            Phase(
                name="pilot",
                command=_command("train", loaded, requested, target, "pilot", part),
                seconds=seconds,
                tells=f"checks that the model learns, with the whole schedule {schedule}",
            )
        )
    planned.append(
        Phase(
            name="full run",
            command=_command("train", loaded, requested, target, "", {}),
            seconds=total_seconds,
            tells="runs the whole training; the same command continues the run in the next session",
        )
    )
    return planned


def plan_command(loaded: LoadedRecipe, requested: Settings, target: Target, changes: Mapping[str, Any]) -> str:
    """Return the command line that plans `loaded` with `changes` of its options and settings; empty for an object."""
    return "" if loaded.is_live else _command("plan", loaded, requested, target, "", changes)


def _command(
    verb: str, loaded: LoadedRecipe, requested: Settings, target: Target, suffix: str, changes: Mapping[str, Any]
) -> str:
    """Return a command line for a shell."""
    # Not by the reference: that would execute the recipe's file again, as other classes than those of `loaded`.
    default = with_defaults(type(loaded.recipe), loaded.name).options
    options = {name: value for name, value in loaded.options.items() if value != default[name]}
    if (
        default.get("weights") == "auto"
        and with_weight_type(loaded.replace(weights="auto"), target, requested).options == loaded.options
    ):
        options.pop("weights", None)  # what the default stands for on this target
    default_settings = Settings().json()
    settings = {name: value for name, value in requested.json().items() if value != default_settings[name]}
    name = loaded.path.stem if loaded.path else loaded.name.removeprefix("hf:").rstrip("/").rpartition("/")[2]
    words = ["shoestring", verb, _reference(loaded)]
    if verb == "train":
        words += ["--run", str(Path("runs", f"{name}-{suffix}" if suffix else name))]
    if target.name != "local":
        words += ["--on", target.name]
    words += _limit_flags(target)
    for key, value in {**config.as_json(options), **settings, **config.as_json(changes)}.items():
        words += ["--set", f"{key}={value}"]
    return shlex.join(words)


def _limit_flags(target: Target) -> list[str]:
    """Return `--limit` and `--disk` for the limits of a target that are not its platform's own."""
    known = targets.known().get(target.name)
    if known is None or target.platform is None or target.platform == known.platform:
        return []
    own = known.platform or Platform(name="", title="")
    flags = []
    if target.platform.session_hours not in (None, own.session_hours):
        hours = target.platform.session_hours
        flags += ["--limit", f"{hours:g}h" if float(f"{hours:g}") == hours else f"{hours * 3600:.12g}s"]
    if target.platform.disk_bytes not in (None, own.disk_bytes):
        size = target.platform.disk_bytes
        flags += ["--disk", f"{size // 10**9}GB" if size % 10**9 == 0 else f"{size / 10**6:.12g}MB"]
    return flags


def _reference(loaded: LoadedRecipe) -> str:
    """Return the reference with a path relative to the working directory, so that the command also works in a copied
    folder; a file outside of the working directory keeps its absolute path."""
    if loaded.path is None:
        return loaded.reference
    relative = os.path.relpath(loaded.path)
    return loaded.reference.replace(str(loaded.path), str(loaded.path) if relative.startswith("..") else relative)
