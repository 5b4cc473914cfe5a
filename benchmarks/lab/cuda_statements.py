"""The statements that are for a GPU: those of functions and classes that name CUDA, NCCL or pinned memory."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"
PACKAGES = (
    "shoestring/training",
    "shoestring/techniques",
    "shoestring/runs",
    "shoestring/integrations",
    "shoestring/hardware",
    "shoestring/base",
    "shoestring_recipes",
)
"""Those that run on a GPU or ask for one: `planning` simulates GPUs on the CPU, and `remote` runs no model."""

_NAME = re.compile(
    r"(?<![a-z])(cuda|nvml|pynvml|nccl|pin_memory|pinned|is_pinned|accelerator|wait_stream|record_stream|"
    r"non_blocking|[Gg]rad_?[Ss]caler|fully_shard|CUDAGraph)(?![a-z])"
)
_LONGEST_NAME = 40
"""Longer strings are messages."""


@dataclass(frozen=True)
class Definition:
    """A function or a class that names CUDA, its file relative to the sources, and the lines of its bodies."""

    file: str
    name: str
    lines: frozenset[int]


def definitions() -> Iterator[Definition]:
    """Yield the functions and classes of modules of `PACKAGES` whose code, docstrings aside, names CUDA."""
    for package in PACKAGES:
        for path in sorted((SOURCES / package).rglob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and any(map(_NAME.search, _words(node))):
                    yield Definition(str(path.relative_to(SOURCES)), node.name, _lines(node))


def _lines(definition: ast.FunctionDef | ast.ClassDef) -> frozenset[int]:
    """Return the lines of the functions in a definition, without their headers, which run when a module is imported."""
    functions = [node for node in ast.walk(definition) if isinstance(node, ast.FunctionDef)]
    bodies = {line for node in functions for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1)}
    return frozenset(bodies - {line for node in functions for line in range(node.lineno, node.body[0].lineno)})


def _words(definition: ast.AST) -> Iterator[str]:
    """Yield the names and the short strings in the code of a definition."""
    for node in ast.walk(definition):
        match node:
            case ast.Name(id=str(word)) | ast.Attribute(attr=str(word)) | ast.keyword(arg=str(word)):
                yield word
            case ast.Constant(value=str(text)) if len(text) < _LONGEST_NAME:
                yield text
