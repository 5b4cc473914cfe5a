"""What a chain sends to Kaggle: the dataset with the wheels, the recipe's files, and the script of each session."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shoestring.base.config import option_text
from shoestring.base.errors import UsageError
from shoestring.base.packages.requirements import required
from shoestring.hardware.images import ImageAnswer, image_answer
from shoestring.hardware.targets import find as find_target
from shoestring.hardware.targets import known as known_targets
from shoestring.recipe.dataset_paths import DatasetPath, parse_dataset_path
from shoestring.recipe.finding import HUGGING_FACE, recipe_for_data
from shoestring.recipe.options import LoadedRecipe
from shoestring.recipe.requirements import required_extras
from shoestring.remote.kaggle.chain_file import ChainState, SessionRecord
from shoestring.remote.kaggle.job import Job, kernel_metadata, session_config
from shoestring.remote.kaggle.kernel.program.places import PACKAGE_FILE
from shoestring.remote.kaggle.kernel.script import embedded, make_script
from shoestring.remote.kaggle.upload import dataset_metadata
from shoestring.remote.wheel import build_wheel, rebuild_wheel, wheel_name
from shoestring.remote.wheels import cached_wheels

TARGETS = tuple(name for name, target in known_targets().items() if target.machine_shape)
"""The machines of Kaggle, those that every account has first."""
_RECIPE_FOLDER = "recipe"
_NONCE_OF_DRY_RUN = "0" * 32


def parse_data(values: Iterable[str]) -> list[DatasetPath]:
    """Return the values of `--data`, `owner/slug` or `owner/slug:PATH`. Raises UsageError with all problems."""
    paths, problems = [], []
    for value in values:
        path = parse_dataset_path(value)
        if path is None:
            problems.append(f"--data {value}: not the name of a dataset, owner/slug or owner/slug:PATH")
        elif path.problem:
            problems.append(f"--data {value}: {path.problem}")
        else:
            paths.append(path)
    if problems:
        raise UsageError("the data cannot be attached", problems=problems, hint="the name is in the dataset's address")
    return paths


def training_data(paths: Iterable[DatasetPath]) -> DatasetPath | None:
    """Return the dataset of `--data` that becomes the option `data`: the first one with a path, or the only one."""
    paths = list(paths)
    with_path = [path for path in paths if path.path]
    return with_path[0] if with_path else paths[0] if len(paths) == 1 else None


def new_chain(
    run: Path,
    *,
    user: str,
    recipe: str,
    on: str,
    limit_seconds: float,
    internet: bool,
    allow_cpu: bool,
    values: Mapping[str, Any],
    data: Iterable[str],
) -> ChainState:
    """Return the state of a chain that has not begun, with names of its own on Kaggle."""
    name = re.sub(r"[^a-z0-9]+", "-", run.absolute().name.lower()).strip("-")[:30].strip("-")
    return ChainState(
        user=user,
        base=f"{name or 'shoestring'}-{secrets.token_hex(3)}",
        recipe=recipe,
        on=on,
        limit_seconds=limit_seconds,
        internet=internet,
        allow_cpu=allow_cpu,
        set={key: option_text(value) for key, value in values.items()},
        data=list(data),
    )


def make_job(loaded: LoadedRecipe, state: ChainState, *, wait: bool = True) -> Job:
    """Return what the sessions of a chain are made of. Raises UsageError for a recipe that cannot be sent."""
    reference = state.recipe
    files: dict[str, bytes] = {}
    if loaded.source is not None:
        class_name = reference.partition(":")[2]
        files = {f"{_RECIPE_FOLDER}/{name}": content for name, content in loaded.source.contents.items()}
        reference = f"{_RECIPE_FOLDER}/{loaded.source.path.name}" + (f":{class_name}" if class_name else "")
    elif reference.startswith(HUGGING_FACE) and Path(reference.removeprefix(HUGGING_FACE)).expanduser().exists():
        raise UsageError(
            f"{reference} is a file of this machine, which is not sent to Kaggle",
            hint=f"name a model of the hub, {HUGGING_FACE}owner/name; or make a dataset of its folder, and train "
            f"{recipe_for_data()} with --set model=OWNER/DATASET:.",
        )
    elif loaded.is_live:
        raise UsageError(f"{reference} exists only in this process", hint="write the recipe into a file")
    target = find_target(state.on)
    assert target.platform is not None
    answer = lacking_packages(loaded, state.on)
    of_recipe = dict([rebuild_wheel(loaded.foreign_package)]) if loaded.foreign_package else {}
    package, digest = package_files(cached_wheels(answer) | of_recipe)
    in_datasets = loaded.in_datasets
    config: dict[str, Any] = {
        "recipe": reference,
        "wheels": list(of_recipe),
        "extras": sorted(required_extras(loaded)),
        "python": answer.image.python,
        **embedded(files),
        "set": {name: value for name, value in state.set.items() if name not in in_datasets},
        "inputs": {name: {"dataset": path.dataset, "path": path.path or "."} for name, path in in_datasets.items()},
        "on": state.on,
        "output_bytes": target.platform.disk_bytes,
        "internet": state.internet,
        "needs_gpu": not state.allow_cpu,
        "arguments": ["--allow-cpu"] if state.allow_cpu else [],
    }
    return Job(
        script=make_script,
        config=config,
        package=package,
        package_digest=digest,
        datasets=tuple(dict.fromkeys(path.dataset for path in [*parse_data(state.data), *in_datasets.values()])),
        accelerator=target.machine_shape,
        wait=wait,
    )


def lacking_packages(loaded: LoadedRecipe, on: str) -> ImageAnswer:
    """Return what the image of a machine of Kaggle lacks for a recipe with its options."""
    platform = find_target(on).platform
    assert platform is not None
    answer = image_answer(platform.name, required(required_extras(loaded)))
    assert answer is not None
    return answer


def package_files(wheels: Mapping[str, bytes] | None = None) -> tuple[dict[str, bytes], str]:
    """Return the files of the package dataset, by name, and the digest of their names and contents.

    Raises UsageError if this copy of Shoestring cannot be made a wheel.
    """
    files = {wheel_name(): build_wheel(), **(wheels or {})}
    entries = {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in sorted(files.items())
    }
    digest = hashlib.sha256(
        "".join(f"{name} {entry['sha256']}\n" for name, entry in entries.items()).encode()
    ).hexdigest()
    content = json.dumps({"format": 1, "digest": digest, "files": entries}, indent=1).encode()
    return {PACKAGE_FILE: content, **files}, digest


def dry_run(state: ChainState, job: Job) -> dict[str, Any]:
    """Return what the first session sends: the bodies of the requests, and the files. Nothing is contacted.

    The script, whose nonce is drawn when it is sent, stands in its request by its length and digest.

    Keys:
        requests (list of objects): the requests to Kaggle, in their order
        requests.service (text): the service of Kaggle's API
        requests.method (text): its method
        requests.body (object): the body of the request
        files (list of objects): the files that are uploaded, and the script
        files.path (text): the name
        files.bytes (integer): the size
        files.sha256 (text): the SHA-256 of the content
        total_bytes (integer): the sum of the sizes
        script (text): the script that the session executes, with its configuration
    """
    session = SessionRecord(
        number=1, nonce=_NONCE_OF_DRY_RUN, slug=f"{state.base}-a", limit_seconds=state.limit_seconds
    )
    script = job.script(session_config(state, session, job)).encode()
    metadata, dataset = kernel_metadata(state, session, job), dataset_metadata(state.package)
    files = {**job.package, "script.py": script}
    create = {
        "title": dataset["title"],
        "slug": dataset["id"].partition("/")[2],
        "ownerSlug": state.user,
        "licenseName": dataset["licenses"][0]["name"],
        "isPrivate": True,
        "files": sorted(job.package),
    }
    save = {
        "slug": metadata["id"],
        "newTitle": metadata["title"],
        "text": {"bytes": len(script), "sha256": hashlib.sha256(script).hexdigest()},
        "language": metadata["language"],
        "kernelType": metadata["kernel_type"],
        "isPrivate": metadata["is_private"],
        "enableGpu": metadata["enable_gpu"],
        "enableTpu": False,
        "enableInternet": metadata["enable_internet"],
        "datasetDataSources": metadata["dataset_sources"],
        "kernelDataSources": metadata["kernel_sources"],
        "sessionTimeoutSeconds": int(session.limit_seconds + 0.999),
        "machineShape": metadata["machine_shape"],
    }
    return {
        "requests": [
            {"service": "datasets.DatasetApiService", "method": "CreateDataset", "body": create},
            {"service": "kernels.KernelsApiService", "method": "SaveKernel", "body": save},
        ],
        "files": [
            {"path": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in files.items()
        ],
        "total_bytes": sum(map(len, files.values())),
        "script": script.decode(),
    }
