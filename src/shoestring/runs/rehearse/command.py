"""The command that a rehearsal runs: a script, a module, a launcher, a notebook or a recipe."""

from __future__ import annotations

import ast
import re
import warnings
from pathlib import Path

from shoestring.base.errors import UsageError
from shoestring.base.reading import read_json
from shoestring.runs.rehearse.request import RehearsalRequest

_MAGICS_OF_CODE = ("%%time", "%%timeit", "%%capture", "%%prun")
"""The magic commands whose cell is Python."""
_ASSIGNED_MAGIC = re.compile(r"^(\s*[\w\s,.\[\]]+=\s*)([!%].*)$")
"""Such as `files = !ls`, which is a list of lines."""

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
    return [
        "-P",
        "-m",
        "shoestring",
        "train",
        recipe,
        "--run",
        str(folder / "run"),
        "--on",
        request.target.name,
        *pairs,
    ]


def _script_of_notebook(path: Path, folder: Path) -> Path:
    """Write the code cells of a notebook as a script, with its magic commands as comments."""
    try:
        notebook = read_json(path, follow=True, strict=False)
        cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} cannot be read as a notebook: {error}", hint="open and save it in Jupyter") from error
    lines = [line for cell in cells for line in (*_lines_of_cell(cell), "")]
    script = folder / f"{path.stem}.py"
    script.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return script


def _lines_of_cell(cell: str) -> list[str]:
    """Return a cell as Python, with as many lines: commands of IPython and of the shell are not rehearsed."""
    lines = cell.splitlines()
    if _is_python(cell):  # a line may also begin with the operator %
        return lines
    first = next((line.split()[0] for line in lines if line.strip()), "")
    if first.startswith("%%") and first not in _MAGICS_OF_CODE:
        return [f"# {line}" for line in lines]
    converted = []
    continues = False
    for line in lines:
        if continues:  # of the line before
            converted.append(f"# {line}")
            continues = line.rstrip().endswith("\\")
            continue
        is_magic = line.lstrip().startswith(("%", "!", "?")) or line.rstrip().endswith("?")
        continues = is_magic and line.rstrip().endswith("\\")
        converted.append(_without_magic(line) if is_magic else _ASSIGNED_MAGIC.sub(r"\1[]  # \2", line))
    return converted


def _is_python(cell: str) -> bool:
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(cell)
    except (SyntaxError, ValueError, RecursionError):
        return False
    return True


def _without_magic(line: str) -> str:
    stripped = line.lstrip()
    return f"{line[: len(line) - len(stripped)]}pass  # {stripped}"
