"""The calls of tools in messages: one form for all ways of writing them, with arguments as a chat template needs them.

A call is `{"type": "function", "function": {"name": ..., "arguments": ...}}`. Its arguments are an object, or the text
of one in JSON, as OpenAI writes them; templates differ in which of both they can write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shoestring.base.reading import parse_json
from shoestring_recipes.finetune.formats import json_problem, kind_of
from shoestring_recipes.finetune.rows import Message


def parse_calls(calls: object, place: str) -> list[dict[str, Any]]:
    """Return the calls of a list, or of its text in JSON. Raises ValueError with the reason."""
    if isinstance(calls, str) and calls.lstrip().startswith("["):
        calls = _parsed(calls, f"{place}: tool_calls")
    if not isinstance(calls, list):
        raise ValueError(f"{place}: tool_calls is {kind_of(calls)}, not a list")
    return [_parse_call(call, f"{place}: tool_calls") for call in calls]


def parse_call_text(text: object, place: str) -> list[dict[str, Any]]:
    """Return the calls of a message `function_call` of ShareGPT: JSON of one call, or of a list of them."""
    value = _parsed(text, f"{place}: its content") if isinstance(text, str) else text
    return [_parse_call(call, f"{place}: its content") for call in (value if isinstance(value, list) else [value])]


def parse_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool as templates need it; one that is the description of a function alone is wrapped."""
    return tool if "function" in tool or "name" not in tool else {"type": "function", "function": tool}


def with_arguments(calls: Sequence[Mapping[str, Any]], *, as_text: bool) -> list[dict[str, Any]]:
    """Return calls whose arguments are all texts, or all objects."""
    return [{**call, "function": _with_arguments(call["function"], as_text=as_text)} for call in calls]


def is_converted(message: Message, *, as_text: bool) -> bool:
    """Return whether arguments of a message have the other form."""
    arguments = [call["function"].get("arguments") for call in message.get("tool_calls", ())]
    return any(isinstance(value, dict if as_text else str) for value in arguments)


def _with_arguments(function: Mapping[str, Any], *, as_text: bool) -> dict[str, Any]:
    arguments = function.get("arguments")
    if as_text and isinstance(arguments, dict):
        return {**function, "arguments": json.dumps(arguments, ensure_ascii=False)}
    if not as_text and isinstance(arguments, str):
        return {**function, "arguments": parse_json(arguments)}
    return dict(function)


def _parse_call(call: object, name: str) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError(f"{name} has an entry without the name of a function")
    if "arguments" in function:
        function = {**function, "arguments": _parse_arguments(function["arguments"], function["name"], name)}
    if "function" in call:
        return {**call, "function": function}
    outer = {key: function[key] for key in ("id", "type") if key in function}
    inner = {key: value for key, value in function.items() if key not in outer}
    return {"type": "function", **outer, "function": inner}


def _parse_arguments(arguments: object, function: str, name: str) -> dict[str, Any] | str:
    """Return arguments as they are if they are an object or the text of one; an empty object if there are none."""
    if arguments is None or arguments == "":
        return {}
    value = arguments
    if isinstance(arguments, str):
        value = _parsed(arguments, f"{name}: the text of the arguments of {function}")
    name = f"{name}: the arguments of {function}"
    if isinstance(value, str):
        raise ValueError(f"{name} are a text within a text: their JSON was encoded twice")
    if not isinstance(value, dict):
        raise ValueError(f"{name} are {kind_of(value)}, not an object")
    return arguments if isinstance(arguments, str) else value


def _parsed(text: str, name: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise ValueError(f"{name} {json_problem(error)}") from error
