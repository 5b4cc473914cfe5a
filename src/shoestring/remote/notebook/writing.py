"""The files of `shoestring notebook`: notebook.ipynb and kernel-metadata.json, ready for `kaggle kernels push`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shoestring.base.errors import UsageError
from shoestring.base.packages.requirements import required
from shoestring.base.system_errors import explaining
from shoestring.base.units import bytes_text
from shoestring.hardware.images import ImageAnswer, image_answer
from shoestring.hardware.targets import find as find_target
from shoestring.hardware.targets import machines
from shoestring.recipe.option_notes import SelectsNewInputs
from shoestring.recipe.options import LoadedRecipe, option_fields
from shoestring.recipe.requirements import required_extras
from shoestring.remote.kaggle.upload import dataset_metadata
from shoestring.remote.notebook.carried import install_cell
from shoestring.remote.notebook.cells import Cell, Platform, make_cells
from shoestring.remote.wheel import recipes_used
from shoestring.remote.wheels import cached_wheels, download_wheels, require_wheels
from shoestring.training.checkpoint.files import write_text

NOTEBOOK, METADATA, WHEELS = "notebook.ipynb", "kernel-metadata.json", "wheels"
_ACCOUNT = re.compile("[A-Za-z0-9][A-Za-z0-9_-]*")
MAX_BYTES = 1_040_000
"""Kaggle refuses a notebook with more than 1 MiB of source, 1,048,576 bytes."""


@dataclass(frozen=True, kw_only=True)
class WrittenNotebook:
    """The files that were written."""

    notebook: str
    """The path of `notebook.ipynb`."""
    metadata: str
    """The path of `kernel-metadata.json`."""
    platform: Platform
    """The platform that it is written for."""
    bytes: int
    """The bytes of the notebook."""
    user: str
    """The account in the metadata."""
    wheels: str = ""
    """The folder with the wheels of what the image lacks, to be uploaded as a dataset; empty if there is none."""

    def json(self) -> dict[str, Any]:
        return asdict(self)


def write_notebook(
    loaded: LoadedRecipe,
    values: Mapping[str, object],
    target: str,
    folder: Path,
    user: str,
    *,
    internet: bool = True,
    allow_cpu: bool = False,
) -> WrittenNotebook:
    """Write a notebook that trains the recipe on the target; for a session without internet also wheels, as a dataset.

    With `allow_cpu`, a session without a GPU trains on its CPU.

    Raises UsageError for a `user` that is no name of an account, another target than a machine of Kaggle or Colab,
    for files that exist, for a notebook that is too large, and for wheels that cannot be downloaded.
    """
    platform = platform_of(target)
    if not _ACCOUNT.fullmatch(user):
        raise UsageError(
            f"--user {user!r:.100}: not the name of an account on Kaggle",
            hint="give the last part of the address of your profile: letters, digits and hyphens",
        )
    if not internet and platform != "kaggle":
        raise UsageError("--no-internet: only sessions of Kaggle can be without internet", hint="leave it out")
    for name in (NOTEBOOK, METADATA, WHEELS):
        if (folder / name).exists():
            raise UsageError(f"{folder / name} exists", hint="choose another folder with --out, or remove the file")
    if loaded.in_datasets and platform != "kaggle":
        raise UsageError(
            f"{_assignments(loaded)}: there is no such path here, and only a session on Kaggle has a dataset of Kaggle",
            hint="on Colab, name a path that is in the user's Google Drive: /content/drive/MyDrive/...",
        )
    if not loaded.reference:
        raise UsageError("the recipe is an object of this process, which a notebook cannot load", hint="name its file")
    if loaded.foreign_package:
        raise UsageError(
            f"a notebook carries no other package than Shoestring, and the recipe {loaded.name} is of "
            f"{loaded.foreign_package}",
            hint="use shoestring kaggle start, which sends it, or copy the recipe into a file and name that",
        )
    files = {name: content.decode() for name, content in loaded.source.contents.items()} if loaded.source else {}
    recipe = loaded.source.path.name if loaded.source else loaded.reference
    _, separator, class_name = loaded.reference.partition(":")
    if loaded.source and separator:
        recipe += f":{class_name}"
    extras = required_extras(loaded)
    answer = image_answer(platform, required(extras))
    assert answer is not None
    dataset = f"{_slug(loaded.name)}-wheels"
    install = install_cell(extras, answer.lacks, dataset, recipes_used(loaded))
    cells = make_cells(
        recipe,
        loaded.name,
        target,
        platform,
        _plain(values),
        files,
        in_datasets={name: str(path) for name, path in loaded.in_datasets.items()},
        new_inputs=_new_inputs(loaded),
        install=install,
        allow_cpu=allow_cpu,
    )
    text = _notebook_text(cells, platform)
    if len(text.encode()) > MAX_BYTES:
        largest = sorted(files, key=lambda name: -len(files[name]))[:3]
        raise UsageError(
            f"the notebook has {bytes_text(len(text.encode()))}, but Kaggle takes at most {bytes_text(MAX_BYTES)}",
            problems=[f"{name}: {bytes_text(len(files[name].encode()))}" for name in largest],
            hint="move large tables out of the recipe's files and read them from a dataset",
        )
    wheels = {} if internet else _wheels(answer)
    with explaining(f"the notebook cannot be written to {folder}", ""):
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / NOTEBOOK, text)
        metadata = _metadata(loaded.name, user, target)
        metadata["enable_internet"] = internet
        datasets = [*([f"{user}/{dataset}"] if wheels else []), *(path.dataset for path in loaded.in_datasets.values())]
        metadata["dataset_sources"] = list(dict.fromkeys(datasets))
        write_text(folder / METADATA, json.dumps(metadata, indent=1) + "\n")
        if wheels:
            (folder / WHEELS).mkdir()
            for name, content in wheels.items():
                (folder / WHEELS / name).write_bytes(content)
            entries = dataset_metadata(f"{user}/{dataset}")
            write_text(folder / WHEELS / "dataset-metadata.json", json.dumps(entries, indent=1) + "\n")
    return WrittenNotebook(
        notebook=str(folder / NOTEBOOK),
        metadata=str(folder / METADATA),
        platform=platform,
        bytes=len(text.encode()),
        user=user,
        wheels=str(folder / WHEELS) if wheels else "",
    )


def _new_inputs(loaded: LoadedRecipe) -> dict[str, str]:
    """Return the options with which the recipe predicts for new inputs of its own data; none if there are none."""
    fields = option_fields(loaded).values()
    return {field.name: note.value for field in fields for note in field.notes if isinstance(note, SelectsNewInputs)}


def _wheels(answer: ImageAnswer) -> dict[str, bytes]:
    """Return the wheels of what an image lacks, by file name. Raises UsageError for those that cannot be downloaded."""
    require_wheels(answer, download_wheels(answer))
    return cached_wheels(answer)


def platform_of(target: str) -> Platform:
    """Return the platform of a notebook's target. Raises UsageError for one without notebooks."""
    platform = find_target(target).platform
    name = platform.name.lower() if platform else ""
    if name.startswith("kaggle"):
        return "kaggle"
    if name.startswith("colab"):
        return "colab"
    raise UsageError(
        f"--on {target}: notebooks are written for Kaggle and Colab",
        hint=f"available: {', '.join([*machines('kaggle'), *machines('colab')])}",
    )


def _assignments(loaded: LoadedRecipe) -> str:
    return ", ".join(f"{name}={path}" for name, path in loaded.in_datasets.items())


def _plain(values: Mapping[str, object]) -> dict[str, Any]:
    """Return options as they are written in Python."""
    return {name: value if isinstance(value, (int, float, bool)) else str(value) for name, value in values.items()}


def _slug(name: str) -> str:
    """Return the name on Kaggle, of at most 50 characters with what is appended to it."""
    return re.sub(r"[^a-z0-9]+", "-", f"shoestring-{name}".lower()).strip("-")[:43].strip("-")


def _metadata(name: str, user: str, target: str) -> dict[str, Any]:
    """Return what Kaggle's client needs to push the notebook: the machine, private, with the internet.

    A notebook for Colab gets two T4s if it is pushed to Kaggle all the same.
    """
    title = _slug(name)
    return {
        "id": f"{user}/{title}",
        "title": title,
        "code_file": NOTEBOOK,
        "language": "python",
        "kernel_type": "notebook",
        "is_private": True,
        "enable_gpu": True,
        "enable_internet": True,
        "machine_shape": find_target(target).machine_shape or find_target("kaggle-t4x2").machine_shape,
        "dataset_sources": [],
        "competition_sources": [],
        "kernel_sources": [],
        "model_sources": [],
    }


def _notebook_text(cells: Iterable[Cell], platform: Platform) -> str:
    """Return the notebook in the format 4.5 of nbformat."""
    metadata: dict[str, Any] = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    if platform == "colab":
        metadata |= {"accelerator": "GPU", "colab": {"gpuType": "T4", "provenance": []}}
    content = {
        "cells": [_cell(number, cell) for number, cell in enumerate(cells, 1)],
        "metadata": metadata,
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _cell(number: int, cell: Cell) -> dict[str, Any]:
    folded = {"jupyter": {"source_hidden": True}, "_kg_hide-input": True, "cellView": "form"} if cell.is_folded else {}
    common = {"id": f"cell-{number:02d}", "metadata": folded, "source": cell.source.splitlines(keepends=True)}
    if cell.kind == "markdown":
        return {"cell_type": "markdown", **common}
    return {"cell_type": "code", "execution_count": None, "outputs": [], **common}
