"""The keys of the JSON of an answer, read from the code that makes it.

The makers of JSON are classes, by their method `json` or as dataclasses, and functions that return an object. The type
and the meaning of a key are those of the field or the property that its value is read from. A key that is computed is
explained in the section `Keys:` of the docstring of the method or the function; a dot leads into an object:

    Keys:
        parts (list of objects): the seconds of an update by phase.
        parts.name (text): the name of the phase.
"""

import ast
import dataclasses
import importlib
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from docs.generate.docstrings import attributes
from docs.generate.markdown import capitalized, code

Maker = type | Callable[..., Any]

_NAMES: Mapping[object, str] = {
    int: "integer",
    float: "number",
    str: "text",
    bool: "true or false",
    types.NoneType: "null",
    Path: "text",
    Any: "JSON",
    object: "JSON",
}
_ENTRY = re.compile(r"(?P<name>[\w.]+) \((?P<type>[^)]+)\): (?P<meaning>.+)", re.DOTALL)
_COPIES = ("asdict", "vars", "fields")


class MissingDocstringError(Exception):
    """The code says nothing about keys of its JSON."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key of an object."""

    name: str
    type: str
    """What its value is in JSON, as Markdown."""
    meaning: str
    keys: tuple["Key", ...] = ()
    """The keys of the object, or of the objects of the list, that is its value; empty if they are not listed."""
    link: str = ""
    """Where these keys are listed, if it is elsewhere."""

    def rows(self, prefix: str = "") -> Iterator[tuple[str, str, str]]:
        """Yield the whole name, the type and the meaning of this key and of those inside."""
        meaning = capitalized(self.meaning) + (f"; {self.link}" if self.link else "")
        yield f"{prefix}{self.name}", self.type, meaning
        inner = f"{prefix}{self.name}{'[]' if self.type.startswith('list') else ''}."
        for key in self.keys:
            yield from key.rows(inner)

    def unexplained(self) -> Iterator[str]:
        """Yield the names of this key and of those inside that have no meaning."""
        if not self.meaning:
            yield self.name
        for key in self.keys:
            yield from (f"{self.name}.{name}" for name in key.unexplained())


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Reads the keys of makers."""

    inner: Mapping[tuple[Maker, str], Maker]
    """The maker of the objects in a key whose type does not say so, by the maker and the key's whole name."""
    links: Mapping[type, str]
    """Classes whose keys are listed elsewhere, with the link."""

    def keys(self, maker: Maker) -> tuple[Key, ...]:
        """Return the keys of the object that `maker` makes.

        Raises MissingDocstringError if the code does not say what a key is.
        """
        function = _json_function(maker)
        keys = self._fields(maker) if function is None else self._of_function(maker, function)
        unexplained = [name for key in keys for name in key.unexplained()]
        if unexplained:
            raise MissingDocstringError(f"{maker.__module__}.{maker.__qualname__}: {', '.join(unexplained)}")
        return tuple(keys)

    def _fields(self, cls: Any, excluded: Sequence[str] = ()) -> list[Key]:
        names = [field.name for field in dataclasses.fields(cls) if field.name not in excluded]
        return [self._attribute(cls, cls, name, name) for name in names]

    def _attribute(self, maker: Maker, owner: type, attribute: str, name: str) -> Key:
        """Return the key `name` whose value is an attribute of the class `owner`."""
        documented = attributes(owner).get(attribute)
        if documented is None:
            return Key(name=name, type="JSON", meaning="")
        kind = _evaluate(documented.annotation, owner)
        meaning = get_args(kind)[1] if get_origin(kind) is Annotated else documented.docstring
        key = Key(name=name, type=type_text(kind), meaning=_without_stop(meaning))
        return self._with_inner(maker, name, key, _classes_in(kind))

    def _with_inner(self, maker: Maker, path: str, key: Key, classes: Sequence[type]) -> Key:
        if (maker, path) in self.inner:
            return replace(key, keys=self.keys(self.inner[maker, path]))
        for cls in classes:
            if cls in self.links:
                return replace(key, link=self.links[cls])
            if dataclasses.is_dataclass(cls):
                return replace(key, keys=self.keys(cls))
        return key

    def _of_function(self, maker: Maker, function: Any) -> list[Key]:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
        assert isinstance(tree, ast.FunctionDef)
        roots = _roots(maker, tree)
        explained = _explained(function)
        keys: dict[str, Key] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (owner := _copied(node, roots)) and _is_whole(node, tree):
                keys |= {key.name: key for key in self._fields(owner, _excluded(tree, owner))}
        for literal in _returned(tree):
            keys |= {key.name: key for key in self._of_literal(maker, literal, roots, explained)}
        inner = [path for owner, path in self.inner if owner is maker]
        for depth in range(3):  # the keys of an inner object may be explained
            for path in [path for path in explained if path.count(".") == depth]:
                _set(keys, path.split("."), *explained[path])
            for path in [path for path in inner if path.count(".") == depth]:
                _update(keys, path.split("."), lambda key, path=path: self._with_inner(maker, path, key, ()))
        return list(keys.values())

    def _of_literal(
        self, maker: Maker, literal: ast.Dict, roots: Mapping[str, type], explained: Mapping[str, Any]
    ) -> list[Key]:
        keys: list[Key] = []
        for name_node, value in zip(literal.keys, literal.values, strict=True):
            if name_node is None:
                keys += self._unpacked(maker, value, roots)
                continue
            assert isinstance(name_node, ast.Constant)
            name = str(name_node.value)
            inner = next((node for node in ast.walk(value) if isinstance(node, ast.Dict)), None)
            if inner is not None and inner is value:
                inside = tuple(self._of_literal(maker, inner, roots, {}))
                keys.append(Key(name=name, type="object", meaning="", keys=inside))
                continue
            chain = None if name in explained else next(_chains(value, roots), None)
            if inner is not None or chain is None:
                keys.append(Key(name=name, type="JSON", meaning=""))
                continue
            owner, attribute = chain
            keys.append(self._attribute(maker, owner, attribute, name))
        return keys

    def _unpacked(self, maker: Maker, value: ast.expr, roots: Mapping[str, type]) -> list[Key]:
        """Return the keys of `**value`; none if they are only in the docstring."""
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "super().json":
            assert isinstance(maker, type)
            return list(self.keys(maker.__bases__[0]))
        chain = next(_chains(value, roots), None)
        if chain is None:
            return []
        owner, attribute = chain
        kind = _evaluate(attributes(owner)[attribute].annotation, owner)
        return [key for cls in _classes_in(kind) for key in self.keys(cls)]


def type_text(kind: Any) -> str:
    """Return what a value of the Python type `kind` is in JSON."""
    if kind in _NAMES:
        return _NAMES[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return type_text(arguments[0])
    if origin is Literal:
        return ", ".join(code(f'"{choice}"') for choice in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(type_text(member) for member in arguments)
    if origin is tuple and Ellipsis not in arguments:
        return f"[{', '.join(type_text(member) for member in arguments)}]"
    if origin in (tuple, list, Sequence):
        return f"list of {_plural(type_text(arguments[0]))}"
    if origin in (dict, Mapping) and arguments[1] is not Any:
        return f"object of {_plural(type_text(arguments[1]))}"
    return "object"


def _plural(text: str) -> str:
    first, *rest = text.split(" ", 1)
    return " ".join([f"{first}s" if first in ("integer", "number", "text", "object") else first, *rest])


def _json_function(maker: Maker) -> Any:
    if not isinstance(maker, type):
        return maker
    return getattr(maker, "json", None)


def _roots(maker: Maker, tree: ast.FunctionDef) -> dict[str, type]:
    """Return the classes of the names from which attributes are read: `self`, and the parameters of a function."""
    if isinstance(maker, type):
        return {"self": maker}
    module = sys.modules[maker.__module__]
    roots = {}
    for argument in (*tree.args.args, *tree.args.kwonlyargs):
        kind = _evaluated(ast.unparse(argument.annotation), module) if argument.annotation else None
        if isinstance(kind, type) and kind.__module__.startswith("shoestring."):
            roots[argument.arg] = kind
    return roots


def _chains(value: ast.expr, roots: Mapping[str, type]) -> Iterator[tuple[type, str]]:
    """Yield the class and the name of each attribute that is read from a root, such as (Device, title)."""
    inner = {id(node.value) for node in ast.walk(value) if isinstance(node, ast.Attribute)}
    for node in ast.walk(value):
        if isinstance(node, ast.Attribute) and id(node) not in inner and (chain := _chain(node, roots)):
            yield chain


def _chain(node: ast.Attribute, roots: Mapping[str, type]) -> tuple[type, str] | None:
    names: list[str] = []
    current: ast.expr = node
    while isinstance(current, ast.Attribute):
        names.insert(0, current.attr)
        current = current.value
    if not isinstance(current, ast.Name) or current.id not in roots:
        return None
    owner, attribute = roots[current.id], None
    for name in names:
        if name not in attributes(owner):
            break  # a method, such as `json` or `items`
        attribute = (owner, name)
        classes = _classes_in(_evaluate(attributes(owner)[name].annotation, owner))
        if not classes:
            break
        owner = classes[0]
    return attribute


def _copied(node: ast.Call, roots: Mapping[str, type]) -> type | None:
    """Return the class of a root whose fields are copied, as in `asdict(self)`."""
    function = ast.unparse(node.func).rpartition(".")[2]
    if function not in _COPIES or not node.args:
        return None
    argument = node.args[0]
    if isinstance(argument, ast.Call) and ast.unparse(argument.func).endswith("replace"):
        argument = argument.args[0]
    return roots.get(argument.id) if isinstance(argument, ast.Name) else None


def _is_whole(node: ast.Call, tree: ast.FunctionDef) -> bool:
    """Return whether the copied fields are keys of the answer itself, not of an object in it."""
    literals = [item for item in ast.walk(tree) if isinstance(item, ast.Dict)]
    return not any(
        any(
            inner is node for value, key in zip(item.values, item.keys, strict=True) if key for inner in ast.walk(value)
        )
        for item in literals
    )


def _excluded(tree: ast.FunctionDef, owner: type) -> Sequence[str]:
    """Return the fields that a comprehension leaves out by `not in NAME`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.NotIn):
            names: Sequence[str] = getattr(sys.modules[owner.__module__], ast.unparse(node.comparators[0]))
            return names
    return ()


def _returned(tree: ast.FunctionDef) -> Iterator[ast.Dict]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Dict):
            yield node.value


def _explained(function: Any) -> dict[str, tuple[str, str]]:
    """Return the type and the meaning of the keys in the section `Keys:` of a docstring."""
    lines = (inspect.getdoc(function) or "").splitlines()
    if "Keys:" not in lines:
        return {}
    section = textwrap.dedent("\n".join(lines[lines.index("Keys:") + 1 :])).split("\n\n")[0]
    result = {}
    for entry in re.split(r"\n(?=\S)", section):
        match = _ENTRY.fullmatch(" ".join(entry.split()))
        if match is None:
            raise MissingDocstringError(f"{function.__qualname__}: not NAME (TYPE): MEANING: {entry}")
        result[match["name"]] = (match["type"], _without_stop(match["meaning"]))
    return result


def _set(keys: dict[str, Key], path: Sequence[str], type_name: str, meaning: str) -> None:
    """Set the type and the meaning of the key at `path`."""
    if len(path) == 1:
        old = keys.get(path[0], Key(name=path[0], type="", meaning=""))
        keys[path[0]] = replace(old, type=type_name, meaning=meaning)
        return
    inner = {key.name: key for key in keys[path[0]].keys}
    _set(inner, path[1:], type_name, meaning)
    keys[path[0]] = replace(keys[path[0]], keys=tuple(inner.values()))


def _update(keys: dict[str, Key], path: Sequence[str], change: Callable[[Key], Key]) -> None:
    if len(path) == 1:
        keys[path[0]] = change(keys[path[0]])
        return
    inner = {key.name: key for key in keys[path[0]].keys}
    _update(inner, path[1:], change)
    keys[path[0]] = replace(keys[path[0]], keys=tuple(inner.values()))


def _evaluate(annotation: str, owner: type) -> Any:
    """Return the type that an annotation in a class names."""
    for cls in owner.__mro__:
        if cls.__module__.startswith("shoestring."):
            kind = _evaluated(annotation, sys.modules[cls.__module__])
            if kind is not None:
                return kind
    return Any


def _evaluated(annotation: str, module: types.ModuleType) -> Any:
    names = {**vars(module), **_imported_for_types(module)}
    try:
        return eval(annotation.strip("\"'"), names)
    except (NameError, AttributeError):
        return None


def _imported_for_types(module: types.ModuleType) -> dict[str, Any]:
    """Return what a module imports under `if TYPE_CHECKING`."""
    result = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for item in node.body:
                if isinstance(item, ast.ImportFrom) and item.module and item.module.startswith("shoestring."):
                    imported = importlib.import_module(item.module)
                    result |= {alias.name: getattr(imported, alias.name) for alias in item.names}
    return result


def _classes_in(kind: Any) -> list[type]:
    """Return the classes of Shoestring in a type, such as those of a list's objects."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return [kind]
    return [cls for argument in get_args(kind) for cls in _classes_in(argument)]


def _without_stop(text: str) -> str:
    first = re.sub(r"\bNone\b", "null", text.split("\n\n")[0])
    return first[:-1] if first.endswith(".") and not first.endswith("..") else first
