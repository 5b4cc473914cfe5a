"""What is checked before the first session is pushed. All problems are reported at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from types import MappingProxyType

from shoestring.errors import UsageError
from shoestring.recipe.finding import is_hugging_face
from shoestring.recipe.options import LoadedRecipe, option_fields
from shoestring.remote.kaggle.package import TARGETS, DataSource, training_data

_INPUT = re.compile(rb"/kaggle/input/[\w./-]*")


def check_recipe(
    loaded: LoadedRecipe,
    on: str,
    values: Mapping[str, object],
    data: list[DataSource],
    absent: Mapping[str, object] = MappingProxyType({}),
) -> list[str]:
    """Return the problems that are known without contacting Kaggle. `absent` are options of the plan alone."""
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
    takes_data = "data" in option_fields(loaded) or is_hugging_face(loaded.name)
    if absent and takes_data and main is None and values.get("data") is None:
        problems.append(
            f"{', '.join(absent)}: for the plan of data that are attached, but {loaded.name} would train its own data: "
            f"add --data OWNER/DATASET, or leave out {', '.join(absent)}"
        )
    if loaded.source is not None:
        for name, content in loaded.source.contents.items():
            problems += [f"{name}: {problem}" for problem in _unattached(content, data)]
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
