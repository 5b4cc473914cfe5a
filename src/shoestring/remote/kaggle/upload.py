"""The dataset with the wheels on Kaggle: uploaded once, again if its content changes or came incompletely."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shoestring.base.errors import RunError
from shoestring.remote.kaggle.chain_file import ChainState
from shoestring.remote.kaggle.client import Client, KaggleError
from shoestring.remote.kaggle.job import Job
from shoestring.remote.temporary import temporary_folder

_ATTEMPTS, _LATE = 40, 8
"""Numbers of polls: until it is given up, and until an upload that is not shown is made again."""
_EXISTS = "already in use"


def dataset_metadata(dataset: str) -> dict[str, Any]:
    """Return the content of `dataset-metadata.json` of a private dataset, `USER/NAME`."""
    return {"id": dataset, "title": dataset.partition("/")[2], "licenses": [{"name": "other"}]}


def upload_package(
    client: Client,
    state: ChainState,
    job: Job,
    folder: Path,
    every_seconds: float,
    on_event: Callable[[str], object],
) -> None:
    """Make the files of `job.package` the newest version of the package dataset, and wait until Kaggle has them.

    The state is written into `folder` before and after the upload. Raises KaggleError, and RunError if Kaggle never
    shows all files.
    """
    if state.package_status == "ready" and state.package_digest == job.package_digest:
        return
    sizes = {name: len(content) for name, content in job.package.items()}
    # An upload that was tried may have landed, and is shown late.
    polls_left = _LATE if state.package_digest == job.package_digest else 0
    problem = ""
    for _ in range(_ATTEMPTS):
        try:
            status = client.dataset_status(state.package)
            problem = difference(client, state.package, sizes) if status == "ready" else f"its status is {status}"
            if not problem and state.package_digest == job.package_digest:
                state.package_status = "ready"
                state.write(folder)
                on_event(f"the package is ready: {state.package}")
                return
            if not polls_left:
                state.package_status, state.package_digest = "uploading", job.package_digest
                state.write(folder)
                on_event(f"uploading the package {state.package}, {sum(sizes.values()) / 1e6:.1f} MB")
                polls_left = _LATE
                _upload(client, state, job.package, is_new=status is None)
                continue
        except KaggleError as error:
            if error.kind not in ("temporary", "forbidden", "missing") and _EXISTS not in error.message:
                raise
            problem = error.message
        polls_left = max(0, polls_left - 1)
        time.sleep(every_seconds)
    raise RunError(
        f"the package {state.package} is not complete on Kaggle: {problem}",
        hint="give the same command again later",
    )


def _upload(client: Client, state: ChainState, files: Mapping[str, bytes], *, is_new: bool) -> None:
    folder = temporary_folder("kaggle")
    try:
        for file, content in files.items():
            (folder / file).write_bytes(content)
        (folder / "dataset-metadata.json").write_text(json.dumps(dataset_metadata(state.package)), encoding="utf-8")
        if is_new:
            client.create_dataset(folder)
        else:
            client.create_version(folder, "Shoestring")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def difference(client: Client, dataset: str, sizes: Mapping[str, int]) -> str:
    """Return which files of a dataset are not there. Kaggle may show an archive as a folder of its content."""
    listed = {str(file["name"]): file["bytes"] for file in client.dataset_files(dataset) or []}
    missing = [
        name
        for name, size in sizes.items()
        if (name not in listed and not any(other.startswith(f"{name}/") for other in listed))
        or (listed.get(name) and listed[name] != size)
    ]
    return f"missing or incomplete: {', '.join(sorted(missing)[:5])}" if missing else ""
