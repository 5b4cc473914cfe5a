"""What is checked before the first session is pushed. All problems are reported at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from types import MappingProxyType

from shoestring.base.errors import UsageError
from shoestring.recipe.dataset_paths import DatasetPath
from shoestring.recipe.finding import is_hugging_face
from shoestring.recipe.options import LoadedRecipe, option_fields
from shoestring.remote.kaggle.package import TARGETS, parse_data, training_data

_INPUT = re.compile(rb"/kaggle/input/[\w./-]*")


def check_recipe(
    loaded: LoadedRecipe,
    on: str,
    values: Mapping[str, object],
    datasets: Iterable[str],
    absent: Mapping[str, object] = MappingProxyType({}),
) -> list[str]:
    """Return the problems that are known without contacting Kaggle. `datasets` are the values of `--data`, `absent`
    options of the plan alone.
    """
    problems = []
    if on not in TARGETS:
        problems.append(f"--on {on}: not a machine of Kaggle with a GPU: {', '.join(TARGETS)}")
    attached, fields = parse_data(datasets), option_fields(loaded)
    main, takes_data = training_data(attached), "data" in fields or is_hugging_face(loaded.name)
    if main and main.path and not takes_data:
        problems.append(f"--data {main}: {loaded.name} has no option data; --data {main.dataset} only attaches it")
    if len(attached) > 1 and main is None and takes_data and "data" not in loaded.in_datasets:
        problems.append("--data: several datasets, and none has a path: write owner/slug:PATH for the training data")
    problems += [f"{name}={path}: {path.problem}" for name, path in loaded.in_datasets.items() if path.problem]
    if values.get("save") == "none":
        problems.append("save=none: a session that Kaggle ends could not be continued; leave it out")
    if absent and takes_data and "data" not in loaded.in_datasets and values.get("data") is None:
        problems.append(
            f"{', '.join(absent)}: for the plan of data that are attached, but {loaded.name} would train its own data: "
            f"add --data OWNER/DATASET, or leave out {', '.join(absent)}"
        )
    if loaded.source is not None:
        for name, content in loaded.source.contents.items():
            problems += [
                f"{name}: {problem}" for problem in _unattached(content, [*attached, *loaded.in_datasets.values()])
            ]
    return problems


def require_no_problems(problems: list[str]) -> None:
    """Raise UsageError if there are problems."""
    if problems:
        raise UsageError(
            "the run cannot be sent to Kaggle", problems=problems, hint="see shoestring kaggle start --help"
        )


def _unattached(content: bytes, attached: Iterable[DatasetPath]) -> Iterator[str]:
    """Yield a problem for each path below /kaggle/input in a recipe's file that is in no attached dataset."""
    slugs = {path.dataset.partition("/")[2] for path in attached}
    for text in sorted({match.decode() for match in _INPUT.findall(content)}):
        parts = PurePosixPath(text).parts[3:]
        if parts and not slugs.intersection(parts):
            name = parts[2] if parts[0] == "datasets" and len(parts) > 2 else parts[0]
            yield f"{text} is in no attached dataset; add --data OWNER/{name}"
