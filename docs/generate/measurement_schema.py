"""The JSON schema of a measurement's file, made from the table that `shoestring measured --check` reads."""

import json
from collections.abc import Mapping
from typing import Any

from shoestring.base.reading import Kind
from shoestring.runs.measurement.of_run import FORMAT, VERSION
from shoestring.runs.measurement.problems import KINDS, SESSION

_TYPES: Mapping[type, str] = {
    bool: "boolean", int: "integer", float: "number", str: "string", dict: "object", list: "array", type(None): "null"
}  # fmt: skip


def schema() -> str:
    """Return the schema as JSON."""
    content = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": FORMAT,
        "description": f"Version {VERSION}. shoestring measured --check FILE also looks at the values.",
        **_object(""),
    }
    content["properties"]["measured"]["properties"]["sessions"]["items"] = _with_fields(
        {name: _value(kind) for name, kind in SESSION.items()}
    )
    return json.dumps(content, indent=1) + "\n"


def _object(path: str) -> dict[str, Any]:
    prefix = f"{path}." if path else ""
    return _with_fields(
        {
            name: _object(f"{prefix}{name}") if f"{prefix}{name}" in KINDS else _value(kind)
            for name, kind in KINDS[path].items()
        }
    )


def _with_fields(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _value(kind: Kind) -> dict[str, Any]:
    types = [_TYPES[type_] for type_ in kind.types]
    if "number" in types:
        types.remove("integer")  # an integer is a number
    bounds = {} if kind.low is None else {"minimum": kind.low, "maximum": kind.high}
    return {"type": types if len(types) > 1 else types[0], **bounds}
