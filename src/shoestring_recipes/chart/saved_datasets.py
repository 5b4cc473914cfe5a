"""The files of a folder that Hugging Face's datasets has saved, and of Parquet files as the hub has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoestring.base.errors import UsageError
from shoestring.base.reading import read_json, reason

DICT, STATE = "dataset_dict.json", "state.json"
"""Of a `DatasetDict`, whose parts are folders, and of a `Dataset`."""

PART_NAMES = {
    "train": "train",
    "validation": "validation",
    "val": "validation",
    "valid": "validation",
    "eval": "validation",
    "dev": "validation",
    "test": "test",
}
"""Our names of parts by those of a dataset."""


def dataset_files(folder: Path) -> dict[str, list[Path]]:
    """Return the Arrow files of what `save_to_disk` has written, by part. Empty for another folder.

    Raises UsageError for a folder that is not as it was written, or without training rows.
    """
    if (folder / DICT).is_file():
        splits = _read(folder / DICT).get("splits")
        if not isinstance(splits, list) or not all(isinstance(name, str) for name in splits):
            raise UsageError(f"{folder / DICT} has no list of splits", hint="save the dataset again")
        if "train" not in splits:
            raise UsageError(
                f"{folder} has no split train, only {', '.join(splits) or 'none'}",
                hint="set data to the folder of the split that is to train",
            )
        parts = {PART_NAMES[name]: folder / name for name in splits if name in PART_NAMES}
        return {part: _state_files(path) for part, path in parts.items()}
    return {"train": _state_files(folder)} if (folder / STATE).is_file() else {}


def parquet_files(folder: Path) -> dict[str, list[Path]]:
    """Return the Parquet files of a folder, or of `data/` in it, by the part with which their names begin."""
    files = sorted(folder.glob("*.parquet")) or sorted(folder.glob("data/*.parquet"))
    parts: dict[str, list[Path]] = {}
    for file in files:
        name = file.stem.partition("-")[0]
        parts.setdefault(PART_NAMES.get(name, "train"), []).append(file)
    if files and "train" not in parts:
        raise UsageError(f"{folder} has no Parquet file train-*.parquet", hint="set data to a file to train on")
    return parts


def _state_files(folder: Path) -> list[Path]:
    """Return the files that `state.json` names, in their order, each of which has to be in the folder itself."""
    state = _read(folder / STATE)
    entries = state.get("_data_files")
    entries = entries if isinstance(entries, list) else []
    names = [str(entry["filename"]) for entry in entries if isinstance(entry, dict) and "filename" in entry]
    if not names or len(names) < len(entries):
        raise UsageError(f"{folder / STATE} names no files", hint="save the dataset again")
    outside = [name for name in names if Path(name).name != name or "\0" in name or not name.endswith(".arrow")]
    if outside:
        raise UsageError(f"{folder / STATE} names files that are no Arrow files in this folder", problems=outside[:20])
    if state.get("_indices_data_files"):
        raise UsageError(
            f"{folder} has a selection of rows in a file of its own", hint="save it with flatten_indices()"
        )
    return [folder / name for name in names]


def _read(file: Path) -> dict[str, Any]:
    try:
        value = read_json(file, follow=True)
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {reason(error)}", hint="save the dataset again") from error
    if not isinstance(value, dict):
        raise UsageError(f"{file} contains no JSON object", hint="save the dataset again")
    return value
