"""The arguments that the comparisons with a simulated GPU have in common."""

import argparse
import tempfile
from collections.abc import Iterable
from pathlib import Path

from benchmarks.lab.memory.configurations import Configuration


def parser(description: str | None, results: Path) -> argparse.ArgumentParser:
    """Return a parser of `--rows`, `--json`, whose default is `results`, and `--only`."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--rows", type=Path, help="the folder of the answers; default: a temporary one")
    result.add_argument("--json", type=Path, default=results)
    result.add_argument("--only", nargs="+", metavar="WORD", help="configurations or kinds that contain one of these")
    return result


def rows_folder(options: argparse.Namespace) -> Path:
    """Return the folder of the answers, which exists."""
    folder = Path(options.rows or tempfile.mkdtemp(prefix="shoestring-lab-"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def chosen(items: Iterable[Configuration], options: argparse.Namespace) -> list[Configuration]:
    """Return the configurations that `--only` leaves."""
    words = options.only or [""]
    return [item for item in items if any(word in item.id or word in item.kind for word in words)]
