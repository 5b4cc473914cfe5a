"""Identifiers of the source are nouns and verbs of the field: the private vocabulary of version 0.1.0 is gone.

`python tests/test_names.py` prints every identifier that still has an old name.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"

OLD_WORDS = set(
    """
    found said told kept asked learned wanted seen begun began room captured ladder arithmetic survival pretend
    pretended talk
    """.split()  # noqa: SIM905
)
"""Words that no identifier contains."""

OLD_NAMES = set(
    """
    done made held shown given followed answered counted described considered judged tried taken brought gathered put
    ended why what where which who whose how each one ones others rest of at more most alike beside together alone apart
    otherwise here there now again like
    """.split()  # noqa: SIM905
)
"""Words that are no identifier by themselves, besides a leading underscore."""

PUBLIC = {
    ("training/data/order.py", "of"): "DataOrder.of of shoestring.pieces",
    ("integrations/trainer.py", "ended"): "an attribute of what `surviving` returns, which scripts read",
    ("runs/check/preflight.py", "tried"): "a key of the JSON of `check`",
    ("training/session/ledger.py", "ended"): "a key of ledger.json",
    ("training/monitor/time_breakdown.py", "arithmetic"): "a cause in the JSON of events",
}
"""Old names that stay because code outside uses them. All others that were public are in `renamed.py`."""


def identifiers(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of every definition, argument and assignment."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def is_old(name: str) -> bool:
    plain = name.lower().strip("_")
    return plain in OLD_NAMES or bool(OLD_WORDS.intersection(plain.split("_")))


def old_names() -> list[tuple[str, int, str]]:
    """The path in the package, the line and the name of every identifier with an old name."""
    return [
        (path.relative_to(SOURCE).as_posix().removeprefix("shoestring/"), line, name)
        for path in sorted(SOURCE.rglob("*.py"))
        for line, name in identifiers(path.read_text())
        if is_old(name)
    ]


def test_only_public_names_are_old():
    assert [(path, line, name) for path, line, name in old_names() if (path, name) not in PUBLIC] == []


def test_an_old_name_is_detected():
    source = "class Room:\n def f(self, told):\n  self._kept = found = told\n  return [each for each in found]"
    names = [name for _, name in identifiers(source) if is_old(name)]
    assert sorted(names) == ["Room", "_kept", "each", "found", "told"]


if __name__ == "__main__":
    for path, line, name in old_names():
        print(f"{path}:{line}: {name}: {PUBLIC.get((path, name), 'to be renamed')}")  # noqa: T201
