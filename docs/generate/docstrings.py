"""The annotations and the docstrings of the fields of classes, from the source."""

import ast
import inspect
import textwrap
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, kw_only=True)
class Attribute:
    """A field or a property of a class, as its source has it."""

    annotation: str
    docstring: str
    """Empty if there is none."""


@cache
def attributes(cls: type) -> dict[str, Attribute]:
    """Return the fields and properties of a class and of its base classes by name, in the order of their definition."""
    result: dict[str, Attribute] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("shoestring."):
            result |= _own_attributes(base)
    return result


def _own_attributes(cls: type) -> dict[str, Attribute]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    result = {}
    for node, following in zip(definition.body, [*definition.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            result[node.target.id] = Attribute(annotation=ast.unparse(node.annotation), docstring=_text(following))
        elif isinstance(node, ast.FunctionDef) and node.returns and _is_property(node):
            docstring = ast.get_docstring(node) or ""
            result[node.name] = Attribute(annotation=ast.unparse(node.returns), docstring=_joined(docstring))
    return result


def _is_property(node: ast.FunctionDef) -> bool:
    return any(isinstance(item, ast.Name) and "property" in item.id for item in node.decorator_list)


def _text(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return _joined(node.value.value)
    return ""


def _joined(text: str) -> str:
    """Return the paragraphs of a docstring, each on one line."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))
