"""The command that a rehearsal runs: a script, a module, a launcher, a notebook or a recipe."""

from __future__ import annotations

import json
from pathlib import Path

from shoestring.base.errors import UsageError
from shoestring.base.reading import JSON_BYTES, read_bytes
from shoestring.runs.rehearse.request import RehearsalRequest

LAUNCHERS = {"torchrun": "torch.distributed.run", "accelerate": "accelerate.commands.accelerate_cli"}
"""The modules of the commands that start one process for each GPU."""


def arguments(request: RehearsalRequest, folder: Path) -> list[str]:
    """Return the arguments of the interpreter that runs what is rehearsed.

    A notebook's code is written to `folder` as a script, and a recipe's run is begun there.

    Raises UsageError for a notebook that cannot be read.
    """
    if request.recipe or request.recipe_file:
        return _training(request, folder)
    if request.module:
        launcher = LAUNCHERS.get(request.module)
        if launcher:  # as a command of an environment, it takes no module from the current folder
            return ["-P", "-m", launcher, *request.arguments]
        return ["-m", request.module, *request.arguments]
    if request.script is None:
        raise UsageError("there is nothing to rehearse", hint="shoestring rehearse SCRIPT.py --on kaggle-t4")
    if request.script.suffix == ".ipynb":
        return [str(_script_of_notebook(request.script, folder)), *request.arguments]
    return [str(request.script), *request.arguments]


def _training(request: RehearsalRequest, folder: Path) -> list[str]:
    """Return the arguments that train a recipe on the simulated target, in a directory that ends with the rehearsal."""
    recipe = request.recipe or str(request.recipe_file)
    pairs = [argument for name, value in request.set_values.items() for argument in ("--set", f"{name}={value}")]
    return ["-P", "-m", "shoestring", "train", recipe, "--run", str(folder / "run"), "--on", request.target.name, *pairs]


def _script_of_notebook(path: Path, folder: Path) -> Path:
    """Write the code cells of a notebook as a script, with its magic commands as comments."""
    try:
        notebook = json.loads(read_bytes(path, follow=True, max_bytes=JSON_BYTES))
        cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} cannot be read as a notebook: {error}", hint="open and save it in Jupyter") from error
    lines = [_without_magic(line) for cell in cells for line in (*cell.splitlines(), "")]
    script = folder / f"{path.stem}.py"
    script.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return script


def _without_magic(line: str) -> str:
    """Return a line of a cell as Python: commands of IPython and of the shell are not rehearsed."""
    stripped = line.lstrip()
    if stripped.startswith(("%", "!")):
        return f"{line[: len(line) - len(stripped)]}pass  # {stripped}"
    return line
