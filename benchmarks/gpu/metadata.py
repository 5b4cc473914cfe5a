"""Write the metadata of this copy of Shoestring, by which its recipes are found where it is not installed.

    python -m benchmarks.gpu.metadata FOLDER

FOLDER belongs into PYTHONPATH then.
"""

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from shoestring.version import __version__

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def write(folder: Path) -> None:
    """Write a folder of metadata with the entry points of `pyproject.toml` into `folder`, which may not exist yet."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    info = folder / f"{project['name']}-{__version__}.dist-info"
    info.mkdir(parents=True)
    metadata = {"Metadata-Version": "2.1", "Name": project["name"], "Version": __version__}
    (info / "METADATA").write_text("".join(f"{name}: {value}\n" for name, value in metadata.items()), encoding="utf-8")
    groups = {
        group: [f"{name} = {value}" for name, value in entries.items()]
        for group, entries in project["entry-points"].items()
    }
    text = "\n".join(line for group, entries in groups.items() for line in (f"[{group}]", *entries))
    (info / "entry_points.txt").write_text(f"{text}\n", encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    write(Path(arguments[0]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
