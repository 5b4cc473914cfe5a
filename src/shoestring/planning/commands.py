"""Command lines that do what a plan says."""

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shoestring.base import config, shell
from shoestring.base.settings import Settings
from shoestring.hardware import targets
from shoestring.hardware.catalog import Platform, Target
from shoestring.hardware.probe import platform_here
from shoestring.planning.weight_type import with_weight_type
from shoestring.recipe.absent_data import split_values
from shoestring.recipe.finding import is_hugging_face
from shoestring.recipe.options import LoadedRecipe, own_fields, with_defaults


def plan_command(loaded: LoadedRecipe, requested: Settings, target: Target, changes: Mapping[str, Any]) -> str:
    """Return the command line that plans `loaded` with `changes` of its options and settings; empty for an object."""
    return "" if loaded.is_live else _command("plan", loaded, requested, target, "", changes)


def training_command(
    loaded: LoadedRecipe,
    requested: Settings,
    target: Target,
    *,
    suffix: str = "",
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Return the command line that trains `loaded` with `changes` of its options, in a run with this suffix.

    From elsewhere, `kaggle start` trains on a machine of Kaggle, session after session, until the run is finished.
    """
    return _command("kaggle start" if is_sent(target) else "train", loaded, requested, target, suffix, changes)


def is_sent(target: Target) -> bool:
    """Return whether runs for the target are sent to Kaggle: it is one of its machines, and this one is not."""
    return target.platform is not None and target.platform.name == "kaggle" != platform_here().name


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
    words = ["shoestring", *verb.split(), _reference(loaded)]
    if verb != "plan":
        words += ["--run", str(Path("runs", f"{name}-{suffix}" if suffix else name))]
    if target.name != "local":
        words += ["--on", target.name]
    words += _limit_flags(target, with_disk=verb != "kaggle start", with_ram=verb == "plan")
    takes_data = "data" in loaded.options or is_hugging_face(loaded.reference)
    if verb == "train":
        options |= dict.fromkeys(loaded.in_datasets, "PATH")
        if loaded.absent_data:
            options = split_values(options, own_fields(loaded))[0] | ({"data": "PATH"} if takes_data else {})
    else:
        options |= {name: str(path) for name, path in loaded.in_datasets.items()}
    if verb == "kaggle start":
        options = {name: _in_dataset(value) for name, value in options.items()}
        if loaded.absent_data and takes_data and "data" not in options:
            words += ["--data", "OWNER/DATASET"]
    for key, value in {**config.as_json(options), **settings, **config.as_json(changes)}.items():
        words += ["--set", f"{key}={value}"]
    return shell.join(words)


def _in_dataset(value: Any) -> Any:
    """Return the value of an option; for a path of this machine, where it would be in a dataset of Kaggle."""
    if not isinstance(value, Path) or value.parts[:2] == ("/", "kaggle"):
        return value
    return f"OWNER/DATASET:{value.name}"


def _limit_flags(target: Target, *, with_disk: bool, with_ram: bool) -> list[str]:
    """Return `--limit`, `--disk` and `--ram` for the limits of a target that are not its platform's own."""
    if target.platform is None or targets.is_here(target.name):
        return []
    own = targets.find(target.name).platform or Platform(name="", title="")
    if target.platform == own:
        return []
    flags = []
    if target.platform.session_hours not in (None, own.session_hours):
        hours = target.platform.session_hours
        flags += ["--limit", f"{hours:g}h" if float(f"{hours:g}") == hours else f"{hours * 3600:.12g}s"]
    if with_disk and target.platform.disk_bytes not in (None, own.disk_bytes):
        flags += ["--disk", _size_text(target.platform.disk_bytes)]
    if with_ram and target.platform.ram_bytes not in (None, own.ram_bytes):
        flags += ["--ram", _size_text(target.platform.ram_bytes)]
    return flags


def _size_text(size: int) -> str:
    return f"{size // 10**9}GB" if size % 10**9 == 0 else f"{size / 10**6:.12g}MB"


def _reference(loaded: LoadedRecipe) -> str:
    """Return the reference with a path relative to the working directory, so that the command also works in a copied
    folder; a file outside of the working directory keeps its absolute path."""
    if loaded.path is None:
        return loaded.reference
    relative = os.path.relpath(loaded.path)
    return loaded.reference.replace(str(loaded.path), str(loaded.path) if relative.startswith("..") else relative)
