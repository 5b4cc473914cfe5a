"""Parse `key=value` pairs into the fields of frozen dataclasses, and report all problems at once.

The help of a field is the string in its `Annotated` type, its choices are its `Literal` values:

    effective_batch: Annotated[int, "samples in one update"] = 32

A value of a field of the type `Path | str` is a path if it exists or begins like one, else a name: `owner/model`.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from shoestring.base.errors import UsageError, nearest
from shoestring.base.reading import number


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """An option or a setting: its name, types, default and help."""

    name: str
    types: tuple[Any, ...]
    choices: tuple[Any, ...]
    default: Any
    help: str
    notes: tuple[Any, ...] = ()
    """What else is annotated after the help."""
    none: str = "none"
    """What None is called, beside `none`."""

    @property
    def optional(self) -> bool:
        return NoneType in self.types

    def expected(self) -> str:
        """Describe the values that the field accepts."""
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}" + (f" or {self.none}" if self.optional else "")
        names = {int: "an integer", float: "a number", bool: "true or false", str: "text", Path: "a path"}
        return " or ".join(names.get(kind, self.none) for kind in self.types)

    def read(self, value: object) -> Any:
        """Convert `value` to the field's type, or raise ValueError."""
        if value is None or (isinstance(value, str) and value.lower() in ("none", self.none) and self.optional):
            if self.optional:
                return None
            raise ValueError(self.expected())
        if self.choices:
            if value in self.choices:
                return value
            raise ValueError(self.expected())
        is_name = {Path, str} <= set(self.types) and isinstance(value, str) and not _is_path(value)
        for kind in (str,) if is_name else self.types:
            try:
                return _convert(value, kind)
            except ValueError:
                continue
        raise ValueError(self.expected())


def fields(cls: type, *, only: Iterable[str] | None = None, none: str = "none") -> dict[str, Field]:
    """Return the fields of the dataclass `cls` by name, in the order of their definition; `only` selects some.

    `none` is what None is called, beside `none`.
    """
    hints = get_type_hints(cls, include_extras=True)
    names = None if only is None else set(only)
    result = {}
    for field in dataclasses.fields(cls):
        if field.init and (names is None or field.name in names):
            default = field.default
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            result[field.name] = _field(field.name, hints[field.name], default, none)
    return result


def parse_pairs(pairs: Iterable[str]) -> dict[str, str]:
    """Parse pairs such as `["epochs=3", "lora.r=8"]` into a mapping; dots in keys become underscores: `lora_r`.

    Raises UsageError for a pair without `=` and for a key that is set twice.
    """
    values: dict[str, str] = {}
    problems = []
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.replace(".", "_")
        if not equals or not key:
            problems.append(f"{pair!r} is not key=value")
        elif key in values:
            problems.append(f"{key} is set twice: {values[key]!r} and {value!r}")
        else:
            values[key] = value
    if problems:
        raise UsageError("--set was not understood", problems=problems, hint="write --set epochs=3")
    return values


def read(values: Mapping[str, object], known: Mapping[str, Field], subject: str) -> dict[str, Any]:
    """Convert `values` to the types of the `known` fields; `subject` names what is set, for the error.

    Raises UsageError with all problems: unknown keys with the most similar known key, and values of a wrong type.
    """
    result, problems = {}, []
    for key, value in values.items():
        if key not in known:
            problems.append(f"{key}: unknown; {nearest(key, known)}")
            continue
        try:
            result[key] = known[key].read(value)
        except ValueError as error:
            problems.append(f"{key}={value}: expected {error}")
    if problems:
        raise UsageError(f"invalid {subject}", problems=problems)
    return result


def as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` with paths as strings, which `read` converts back to paths."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


def option_text(value: object) -> str:
    """Return a value as the command line has it, from which `read` makes the value again."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value is None else str(value)


def too_small(values: Mapping[str, Any], floors: Mapping[str, float]) -> list[str]:
    """Return a problem for each of `values` that is below its floor. None is not checked."""
    return [
        f"{name}={values[name]}: must be at least {floor}"
        for name, floor in floors.items()
        if values[name] is not None and values[name] < floor
    ]


def _field(name: str, hint: Any, default: Any, none: str) -> Field:
    text, notes = "", []
    if get_origin(hint) is Annotated:
        hint, text, *notes = get_args(hint)
    members = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
    types: list[Any] = []
    choices: list[Any] = []
    for member in members:
        if get_origin(member) is Literal:
            choices += get_args(member)
        else:
            types.append(member)
    return Field(
        name=name,
        types=tuple(types),
        choices=tuple(choices),
        default=default,
        help=text,
        notes=tuple(notes),
        none=none,
    )


def _is_path(text: str) -> bool:
    if text.startswith(("/", "~", ".")):
        return True
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # too long, or with a null character
        return False


def _convert(value: object, kind: Any) -> Any:
    if kind is NoneType:
        raise ValueError
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        if (converted := number(value)) is None:
            raise ValueError
        return converted
    if not isinstance(value, str):
        raise ValueError
    if kind is bool:
        values = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if value.lower() not in values:
            raise ValueError
        return values[value.lower()]
    if kind is Path:
        if "\0" in value:
            raise ValueError
        # Absolute, because a later session may continue the run from another working directory.
        return Path(value).expanduser().absolute()
    converted = kind(value)
    return _convert(converted, kind) if kind is float else converted
