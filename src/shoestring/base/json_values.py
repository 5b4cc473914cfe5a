"""Values of recipes, scripts and libraries as JSON: one function, and the table of what becomes what.

Whatever writes a value that Shoestring has not made itself encodes it here first: rows of predictions, identifiers,
metrics, events, options. `docs/generate` copies the table.
"""

import dataclasses
import enum
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from datetime import date, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from typing import Any
from uuid import UUID

TABLE = (
    ("`None`, texts, booleans, numbers", "themselves; half of a character in a text becomes `?`"),
    (
        "NaN and infinities",
        "`null` in rows of predictions; `nan`, `inf` and `-inf` as texts in metrics, events and answers with `--json`",
    ),
    ("`NA` and `NaT` of pandas", "`null`"),
    ("tensors, arrays, `Series`, and their numbers, of any type", "numbers and lists of them"),
    ("`Decimal`, `Fraction`", "the nearest number"),
    ("dates and times, also of NumPy and pandas", "texts as in ISO 8601: `2026-01-02T03:04:05`"),
    ("durations", "numbers of seconds"),
    ("members of an enumeration", "their values"),
    ("paths, and `UUID`s", "texts"),
    ("dataclasses and mappings", "objects, whose keys are texts"),
    ("lists, tuples, other sequences, and sets, which are sorted", "lists"),
    (
        "bytes, complex numbers, integers of more than 290 digits, mappings with two keys of the same text, what "
        "contains itself or has more than 64 levels, every other object",
        "refused, with their type and their place",
    ),
)
"""What has which form in JSON."""

_MAX_INTEGER = 10**290  # readers of JSON refuse longer ones
_MAX_LEVELS = 64  # `reading.py` refuses more than 100, and a value is a part of a row, an event or a state
_MISSING = ("NAType", "NaTType")
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
_HALF_CHARACTER_NOT_OF_A_PATH = re.compile("[\ud800-\udc7f\udd00-\udfff]")


class NotJsonError(ValueError):
    """A value has no form in JSON. The message names the value, its type and its place, or another reason."""


def encode(value: Any, *, names: bool = False) -> Any:
    """Return a value as JSON by `TABLE`. A number that is not finite becomes its name if `names`, and None otherwise.

    Raises NotJsonError.
    """
    return _Encoder(names=names, refuse=_refuse).encode(value)


def encode_record(value: Any) -> Any:
    """Return a value as JSON for a record that has to be written: what `encode` refuses becomes a text that says why.

    Bytes of a path that is not UTF-8 remain as Python represents them.
    """
    return _Encoder(names=True, refuse="({})".format, half_character=_HALF_CHARACTER_NOT_OF_A_PATH).encode(value)


def _refuse(reason: str) -> Any:
    raise NotJsonError(reason)


class _Encoder:
    def __init__(
        self,
        *,
        names: bool,
        refuse: Callable[[str], Any],
        half_character: re.Pattern[str] = _HALF_CHARACTER,
    ) -> None:
        self._names, self._refuse, self._half_character = names, refuse, half_character
        self._place: list[str] = []
        self._containers: set[int] = set()

    def encode(self, value: Any) -> Any:
        kind = type(value)
        if kind is float:
            return value if math.isfinite(value) else self._not_finite(value)
        if kind is str:
            return self._half_character.sub("?", value)
        if value is None or kind is bool:
            return value
        if kind in (list, tuple):
            return self._list(value, value)
        return self._other(value)

    def _other(self, value: Any) -> Any:
        """Encode a value of a type that is less common."""
        if isinstance(value, enum.Enum):
            return self.encode(value.value)
        if isinstance(value, int):
            if abs(value) >= _MAX_INTEGER:
                return self._refuse(f"an integer of more than 290 digits{self._place_text()}")
            return int(value)
        if type(value).__name__ in _MISSING:
            return None
        if isinstance(value, bytes | bytearray | memoryview):
            return self._unknown(value)
        if hasattr(value, "tolist"):  # a tensor, or an array or number of NumPy or pandas
            return self._array(value)
        if isinstance(value, float | Decimal | Fraction):
            return self.encode(_number(value))
        if isinstance(value, str):
            return self.encode("".join(value))
        if isinstance(value, date | time):
            return value.isoformat()
        if isinstance(value, timedelta):
            return value.total_seconds()
        if isinstance(value, PurePath | UUID):
            return self.encode(str(value))
        if isinstance(value, Mapping):
            return self._object(value, value.items())
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
            return self._object(value, fields)
        if isinstance(value, Set):
            return self._list(value, sorted(value, key=_order))
        if isinstance(value, Sequence):
            return self._list(value, value)
        return self._unknown(value)

    def _array(self, value: Any) -> Any:
        kind = getattr(getattr(value, "dtype", None), "kind", "")
        try:
            if kind == "M":  # `tolist` makes integers of times in nanoseconds
                return self.encode(_without_missing(value.astype(str).tolist()))
            if kind == "m":
                return self.encode(_in_seconds(value))
            if getattr(value, "is_sparse", False):
                value = value.to_dense()
            plain = value.tolist()
        except NotJsonError:
            raise
        except Exception as error:  # noqa: BLE001  (of any library, such as that of a tensor without values)
            return self._refuse(f"{_text(value)} of type {type(value).__name__}{self._place_text()}: {error}")
        # A number of more bits than a float has itself as its list.
        return self.encode(float(plain) if hasattr(plain, "tolist") else plain)

    def _list(self, container: Any, items: Any) -> Any:
        with self._inside(container) as reason:
            return self._refuse(reason) if reason else [self._at_key(f"[{i}]", item) for i, item in enumerate(items)]

    def _object(self, container: Any, items: Any) -> Any:
        with self._inside(container) as reason:
            if reason:
                return self._refuse(reason)
            result: dict[str, Any] = {}
            for key, item in items:
                name = self._half_character.sub("?", str(key.value if isinstance(key, enum.Enum) else key))
                if name in result:
                    return self._refuse(f"a mapping with two keys {name!r:.100}{self._place_text()}")
                result[name] = self._at_key(f".{name:.40}", item)
            return result

    def _at_key(self, key: str, value: Any) -> Any:
        self._place.append(key)
        try:
            return self.encode(value)
        finally:
            self._place.pop()

    @contextmanager
    def _inside(self, container: Any) -> Iterator[str]:
        """Return a context of what a container contains, with the reason why it cannot be encoded; empty if it can."""
        if id(container) in self._containers:
            yield f"a {type(container).__name__} that contains itself{self._place_text()}"
        elif len(self._place) >= _MAX_LEVELS:
            yield f"a {type(container).__name__} of more than {_MAX_LEVELS} levels"
        else:
            self._containers.add(id(container))
            try:
                yield ""
            finally:
                self._containers.discard(id(container))

    def _not_finite(self, value: float) -> str | None:
        return str(value) if self._names else None

    def _unknown(self, value: Any) -> Any:
        return self._refuse(f"{_text(value)} of type {type(value).__name__}{self._place_text()}")

    def _place_text(self) -> str:
        place = "".join(self._place[:8])
        return f" at {place.removeprefix('.')}" if place else ""


def _number(value: float | Decimal | Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except ValueError:  # a signaling NaN
        return math.nan


def _order(item: Any) -> tuple[str, Any]:
    """Return a key by which the items of a set are sorted, whatever their types."""
    if isinstance(item, int | float) and item == item:
        return "", item
    return type(item).__name__, str(item)


def _without_missing(dates: Any) -> Any:
    if isinstance(dates, list):
        return [_without_missing(item) for item in dates]
    return None if dates == "NaT" else dates


def _in_seconds(durations: Any) -> Any:
    import numpy

    return (durations / numpy.timedelta64(1, "s")).tolist()


def _text(value: Any) -> str:
    """Return a value in short, whatever its `__repr__` does."""
    try:
        return f"{value!r:.100}".replace("\n", " ")
    except Exception:  # noqa: BLE001
        return "an object"
