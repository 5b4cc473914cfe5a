"""Packages with recipes, installed into a folder as pip would, which is then a part of `sys.path`."""

import shutil
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "fixtures" / "package" / "line_fitting.py"


def install(folder: Path, distribution: str, version: str = "1.0", *, recipes: str = "", module: str = "") -> Path:
    """Install a distribution with these `recipes`, lines of its entry points. Returns the folder of its metadata.

    `module` is the text of a module of the distribution's name; by default it is that of `tests/fixtures/package`.
    """
    name = distribution.replace("-", "_")
    if module:
        (folder / f"{name}.py").write_text(module)
    else:
        shutil.copy(SOURCE, folder / f"{name}.py")
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[shoestring.recipes]\n{recipes}\n")
    files = [f"{name}.py", f"{info.name}/METADATA", f"{info.name}/entry_points.txt", f"{info.name}/RECORD"]
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in [*files, "../../bin/their-program"]))
    return info


def uninstall(info: Path) -> None:
    shutil.rmtree(info)
