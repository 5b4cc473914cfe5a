"""What is checked before the first session is pushed. All problems are reported at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from shoestring.errors import UsageError
from shoestring.recipe.options import LoadedRecipe, option_fields
from shoestring.remote.kaggle.client import Client
from shoestring.remote.kaggle.package import TARGETS, DataSource, training_data

_INPUT = re.compile(rb"/kaggle/input/[\w./-]*")


def check_recipe(loaded: LoadedRecipe, on: str, values: Mapping[str, object], data: list[DataSource]) -> list[str]:
    """Return the problems that are known without contacting Kaggle."""
    problems = []
    if on not in TARGETS:
        problems.append(f"--on {on}: not a machine of Kaggle with a GPU: {', '.join(TARGETS)}")
    main = training_data(data)
    if main and "data" not in option_fields(loaded):
        problems.append(f"--data {main.dataset}: {loaded.name} has no option data")
    if len(data) > 1 and main is None:
        problems.append("--data: several datasets, and none has a path: write owner/slug:PATH for the training data")
    if main and "data" in values:
        problems.append(f"data={values['data']}: --data {main.dataset} gives the option data; leave one of them out")
    if loaded.source is not None:
        for name, content in loaded.source.contents.items():
            problems += [f"{name}: {problem}" for problem in _unattached(content, data)]
    return problems


def check_datasets(client: Client, data: list[DataSource]) -> list[str]:
    """Return the problems with the datasets: one that is not there or not readable, or a path that is not in one."""
    problems = []
    for source in data:
        files = client.dataset_files(source.dataset)
        if files is None:
            problems.append(f"--data {source.dataset}: there is no such dataset that your account may read")
            continue
        names = [str(file["name"]) for file in files]
        if source.path and not any(name == source.path or name.startswith(f"{source.path}/") for name in names):
            listed = ", ".join(sorted(names)[:5]) or "nothing"
            problems.append(
                f"--data {source.dataset}:{source.path}: the dataset has no such file or folder; it has {listed}"
            )
    return problems


def require_no_problems(problems: list[str]) -> None:
    """Raise UsageError if there are problems."""
    if problems:
        raise UsageError(
            "the run cannot be sent to Kaggle", problems=problems, hint="see shoestring kaggle start --help"
        )


def _unattached(content: bytes, data: list[DataSource]) -> Iterator[str]:
    """Yield a problem for each path below /kaggle/input in a recipe's file that is in no dataset of `--data`."""
    slugs = {source.dataset.partition("/")[2] for source in data}
    for text in sorted({match.decode() for match in _INPUT.findall(content)}):
        parts = PurePosixPath(text).parts[3:]
        if parts and not slugs.intersection(parts):
            name = parts[2] if parts[0] == "datasets" and len(parts) > 2 else parts[0]
            yield f"{text} is in no attached dataset; add --data OWNER/{name}"
