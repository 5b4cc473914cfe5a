"""A new recipe: `template.py` under another name, a commented recipe that runs."""

from __future__ import annotations

import importlib.util
import keyword
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from shoestring.base.errors import UsageError
from shoestring.base.system_errors import explaining

_NAME = re.compile(r"[a-z][a-z0-9_]*", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class NewRecipe:
    """A recipe's file that was written."""

    path: str
    """The path of the file."""
    class_name: str
    """The name of the recipe's class in it."""
    commands: tuple[str, ...]
    """The commands that plan, try and train it."""

    def json(self) -> dict[str, Any]:
        return {"path": self.path, "class_name": self.class_name, "commands": list(self.commands)}


def write_recipe(name: str, folder: Path = Path()) -> NewRecipe:
    """Write the file of a new recipe into the folder, and return what was written.

    Raises UsageError if the name is not that of a module, if a module of this name is installed, which the file would
    hide, and if the file exists.
    """
    name = name.removesuffix(".py")
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise UsageError(
            f"{name!r} cannot be the name of a recipe: its file is imported as a module",
            hint="use letters, digits and underscores, beginning with a letter, for example my_recipe",
        )
    if importlib.util.find_spec(name) is not None:
        raise UsageError(
            f"{name!r} is the name of an installed module, which {name}.py would hide from your code",
            hint=f"choose another name, for example my_{name}",
        )
    path = folder / f"{name}.py"
    class_name = "".join(word[:1].upper() + word[1:] for word in name.split("_"))
    text = resources.files("shoestring.recipe").joinpath("template.py").read_text("utf-8")
    text = text.replace("{name}", name).replace("class Template:", f"class {class_name}:")
    if path.exists():
        raise UsageError(f"{path} exists", hint="remove it, or choose another name")
    with explaining(f"{path} cannot be written"), path.open("x", encoding="utf-8") as file:
        file.write(text)
    commands = ("plan {} --on kaggle-t4", "check {}", "train {} --run runs/" + name)
    return NewRecipe(
        path=str(path),
        class_name=class_name,
        commands=tuple(f"shoestring {command.format(path)}" for command in commands),
    )
