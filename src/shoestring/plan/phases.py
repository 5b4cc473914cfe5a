"""A run in three phases, each a command line: does it run at all, does it learn, then the whole."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shoestring import config
from shoestring.plan.sessions import START_SECONDS, STOP_SECONDS
from shoestring.recipe.finding import find
from shoestring.recipe.options import LoadedRecipe
from shoestring.settings import Settings

SMOKE_UPDATES = 20
PILOT_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class Phase:
    """What to run, how long it takes, and what it tells."""

    name: str
    command: str
    seconds: float | None
    """With starting and stopping; None where the time is unknown."""
    tells: str

    def json(self) -> dict[str, Any]:
        return asdict(self)


def phases(
    loaded: LoadedRecipe,
    wanted: Settings,
    on: str,
    *,
    samples: int | None,
    update_seconds: float | None,
    total_seconds: float | None,
) -> list[Phase]:
    """The phases that make sense: no pilot where the whole run takes no longer; none of a recipe that cannot train."""
    if loaded.is_live or samples is None:
        return []
    found = []
    around = START_SECONDS + STOP_SECONDS
    smoke = min(samples, SMOKE_UPDATES * loaded.effective_batch)
    if smoke < samples or loaded.epochs > 1:
        part = {"subset": smoke} if smoke < samples else {}
        found.append(
            Phase(
                name="smoke test",
                command=_command("train", loaded, wanted, on, "smoke", {"epochs": 1, **part}),
                seconds=None
                if update_seconds is None
                else around + update_seconds * -(-smoke // loaded.effective_batch),
                tells="whether data, model, saving and evaluation work there, and the measured time of an update",
            )
        )
    if total_seconds is not None and total_seconds > 2 * PILOT_SECONDS:
        share = PILOT_SECONDS / total_seconds
        pilot = max(loaded.effective_batch, round(samples * share))
        found.append(
            Phase(
                name="pilot",
                command=_command("train", loaded, wanted, on, "pilot", {"subset": pilot}),
                seconds=around + total_seconds * pilot / samples,
                tells="whether it learns: the whole schedule on a stratified part of the data",
            )
        )
    found.append(
        Phase(
            name="full run",
            command=_command("train", loaded, wanted, on, "", {}),
            seconds=None if total_seconds is None else around + total_seconds,
            tells="the result; the same command again in the next session continues",
        )
    )
    return found


def plan_command(loaded: LoadedRecipe, wanted: Settings, on: str, changes: Mapping[str, Any]) -> str:
    """Return the command line that plans `loaded` with `changes` of its options and settings; empty for an object."""
    return "" if loaded.is_live else _command("plan", loaded, wanted, on, "", changes)


def _command(
    verb: str, loaded: LoadedRecipe, wanted: Settings, on: str, suffix: str, changes: Mapping[str, Any]
) -> str:
    """Return a command line for a shell."""
    default = find(loaded.reference).options
    options = {name: value for name, value in loaded.options.items() if value != default[name]}
    plain = Settings().json()
    settings = {name: value for name, value in wanted.json().items() if value != plain[name]}
    name = loaded.path.stem if loaded.path else loaded.name.removeprefix("hf:").rstrip("/").rpartition("/")[2]
    words = ["shoestring", verb, _reference(loaded)]
    if verb == "train":
        words += ["--run", str(Path("runs", f"{name}-{suffix}" if suffix else name))]
    if on != "local":
        words += ["--on", on]
    for key, value in {**config.as_json(options), **settings, **config.as_json(changes)}.items():
        words += ["--set", f"{key}={value}"]
    return shlex.join(words)


def _reference(loaded: LoadedRecipe) -> str:
    """A file below the working directory as seen from there, so that the line still holds in a copied folder."""
    if loaded.path is None:
        return loaded.reference
    near = os.path.relpath(loaded.path)
    return loaded.reference.replace(str(loaded.path), str(loaded.path) if near.startswith("..") else near)
