"""The arguments of a LightningModule's constructor, and of its LightningDataModule's, as a recipe's options."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields, make_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.recipe.options import Common

BATCH_SIZE = "batch_size"
"""The argument that is the option `effective_batch`."""

_SIMPLE = (bool, int, float, str, Path)
_ANY = int | float | str | None
_RESERVED = {BATCH_SIZE, *(field.name for field in (*fields(Settings), *fields(Common)))}
"""Names that mean something else: such an argument has its default."""


def make_options(kinds: Sequence[type]) -> type:
    """Return a frozen dataclass whose fields are the arguments of the classes that are numbers, texts or paths.

    An argument without a default is None. Of two arguments of one name with different defaults only the first is an
    option.
    """
    options: dict[str, tuple[str, Any, Any]] = {}
    for kind in kinds:
        hints = _hints(kind)
        for name, parameter in arguments_of(kind).items():
            if name in _RESERVED or name in options:
                continue
            required = parameter.default is inspect.Parameter.empty
            default = None if required else parameter.default
            option_type = _option_type(hints.get(name), default)
            if option_type is not None:
                options[name] = (name, Annotated[option_type, f"argument of {kind.__name__}"], default)
    return make_dataclass("Options", list(options.values()), frozen=True, kw_only=True)


def arguments_of(kind: Any) -> dict[str, inspect.Parameter]:
    """Return the named parameters of the class's constructor, without `self`."""
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {parameter.name: parameter for parameter in parameters if parameter.kind in named}


def call(kind: type, options: Mapping[str, Any], effective_batch: int) -> Any:
    """Return a new object of the class, with the options that are its arguments.

    Raises UsageError if an argument without a default has no value.
    """
    values: dict[str, Any] = {}
    missing = []
    for name, parameter in arguments_of(kind).items():
        if name == BATCH_SIZE:
            values[name] = effective_batch
            continue
        required = parameter.default is parameter.empty
        if name in options and options[name] is not None:
            values[name] = options[name]
        elif required:
            missing.append(name)
        elif name in options and parameter.default != options[name]:
            values[name] = None
    if missing:
        settable = [name for name in missing if name in options]
        raise UsageError(
            f"{kind.__name__} cannot be made: {', '.join(missing)} {'has' if len(missing) == 1 else 'have'} no default",
            hint=" ".join(f"--set {name}=VALUE" for name in settable)
            if settable == missing
            else f"give {missing[0]} a default, or write a subclass of {kind.__name__} that passes it",
        )
    return kind(**values)


def _hints(kind: Any) -> dict[str, Any]:
    try:
        return get_type_hints(kind.__init__, include_extras=True)
    except Exception:  # noqa: BLE001  (a name in an annotation may be imported for type checkers only)
        return {}


def _option_type(hint: Any, default: Any) -> Any:
    """Return the type of an option for an argument; None if its values are not numbers, texts or paths."""
    if hint is None or hint is Any:
        if default is None:
            return _ANY
        if type(default) is int:
            return int | float
        return type(default) if isinstance(default, _SIMPLE) else None
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    members = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
    simple = tuple(
        member for member in members if member in _SIMPLE or member is NoneType or get_origin(member) is Literal
    )
    if not any(member is not NoneType for member in simple):
        return None
    if default is not None and not isinstance(default, _SIMPLE):
        return None
    return Union[(*simple, NoneType)] if default is None else Union[simple]  # noqa: UP007
