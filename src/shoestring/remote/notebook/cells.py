"""The cells of a notebook that trains a recipe: install, check, plan, train, report, use the model, go on."""

from __future__ import annotations

import pprint
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shoestring.base.config import option_text

Platform = Literal["kaggle", "colab"]

_STORAGE_TEXTS = {
    "kaggle": "Kaggle keeps the files of `/kaggle/working` when you choose *Save Version*, then *Save & Run All*.",
    "colab": "The run is kept in your Google Drive, because the machine of a Colab session is deleted with its disk.",
}
_NEXT = {
    "kaggle": """\
**If the run is paused**, the session was too short to finish it:

1. *Save Version*, then *Save & Run All (Commit)*, runs this notebook in the background and keeps its output.
2. When that version has ended, choose *Add Input*, then *Notebook Output*, and select this notebook.
3. *Save & Run All* again. The run is found in the attached output and goes on, bit for bit, where it stopped.

From a laptop, this command does all of it by itself until a run is finished, which it begins anew:

    shoestring kaggle start {recipe} --run runs/{name}{options}""",
    "colab": """\
**If the run is paused**, or Colab has ended the session: open this notebook again and choose *Runtime*, then *Run all*.
The run lies in your Google Drive and goes on, bit for bit, where it stopped.""",
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    kind: Literal["markdown", "code"]
    source: str
    is_folded: bool = False


def make_cells(
    recipe: str,
    name: str,
    target: str,
    platform: Platform,
    values: Mapping[str, Any],
    files: Mapping[str, str],
    in_datasets: Mapping[str, str],
    new_inputs: Mapping[str, str],
    install: str,
    allow_cpu: bool = False,
) -> Iterator[Cell]:
    """Yield the cells. `recipe` is a name or the path of one of `files`, which the notebook writes.

    `in_datasets` has options that are paths in attached datasets, and `new_inputs` those with which the recipe predicts
    for new inputs of its own data. `install` is the source of the cell that installs Shoestring. With `allow_cpu` a
    session without a GPU trains on its CPU; otherwise the cell that trains raises an error.
    """
    folder = re.sub(r"[^\w.-]+", "-", name)  # of a class in a file, the name has a colon
    yield _text(
        f"# Train `{name}` on {'Kaggle' if platform == 'kaggle' else 'Colab'}\n\n"
        f"Choose **Run all**. The notebook checks the machine, predicts memory and time, trains, and reports. It is "
        f"saved before the session's limit; interrupting the training cell pauses it, and *Run all* goes on. "
        f"{_STORAGE_TEXTS[platform]}"
    )
    yield Cell(kind="code", source=install, is_folded=True)
    folders = sorted({path.rpartition("/")[0] for path in files if "/" in path})
    if folders:  # %%writefile makes none
        yield _code(
            f"from pathlib import Path\n\nfor name in {folders!r}:\n    Path(name).mkdir(parents=True, exist_ok=True)"
        )
    for path, content in files.items():
        yield Cell(kind="code", source=f"%%writefile {path}\n{content}")
    yield _text("## What is trained, and where\n\nChange `OPTIONS` before the first run: a run keeps its options.")
    options = pprint.pformat(dict(values), width=100, sort_dicts=False)
    attached = "".join(f"\nOPTIONS[{name!r}] = session.attached_path({path!r})" for name, path in in_datasets.items())
    yield _code(
        f"""\
import shoestring
from shoestring.remote.notebook import session

RECIPE = {recipe!r}
TARGET = {target!r}
OPTIONS = {options}{attached}
RUN = session.run_directory({folder!r}, {platform!r})
session.continue_attached_run(RUN)"""
    )
    yield _text("## Check the machine\n\nThe GPU, the disk, the data, and a few updates.")
    yield _code("shoestring.check(RECIPE, on=TARGET, run=RUN, **OPTIONS)")
    yield _text("## Plan\n\nMemory, time and sessions, predicted before training.")
    yield _code("shoestring.plan(RECIPE, on=TARGET, **OPTIONS)")
    yield _text(
        "## Train\n\nThe display follows the run. **Interrupt this cell to pause**: the run is saved, and the cell "
        "goes on with it. It is also saved, and paused, before the session's limit."
    )
    permission = "allow_cpu=True, " if allow_cpu else ""
    limit = "limit_seconds=session.seconds_left(TARGET)"
    yield _code(f"shoestring.train(RECIPE, run=RUN, on=TARGET, {permission}{limit}, **OPTIONS)")
    yield _text("## The report")
    yield _code("session.show_page(shoestring.report(RUN))")
    yield _text("## Use the model\n\nThe metrics of its best weights, and predictions for new inputs.")
    yield _code("shoestring.evaluate(RUN)")
    yield _code(_predict_code(new_inputs, has_data="data" in {*values, *in_datasets}))
    pairs = (f"{option}={option_text(value)}" for option, value in {**values, **in_datasets}.items())
    arguments = "".join(f" --set {shlex.quote(pair)}" for pair in pairs)
    yield _text("## What to do next\n\n" + _NEXT[platform].format(recipe=recipe, name=folder, options=arguments))


def _predict_code(new_inputs: Mapping[str, str], *, has_data: bool) -> str:
    if new_inputs:
        data = 'data=OPTIONS["data"], ' if has_data else ""
        options = "".join(f'{name}="{value}", ' for name, value in new_inputs.items())
        return f"shoestring.predict(RUN, {data}{options}out=session.predictions_file(RUN))"
    return """\
NEW_DATA = None  # the path of a file or folder with new inputs

if NEW_DATA:
    shoestring.predict(RUN, data=NEW_DATA, out=session.predictions_file(RUN))"""


def _text(source: str) -> Cell:
    return Cell(kind="markdown", source=source)


def _code(source: str) -> Cell:
    return Cell(kind="code", source=source)
