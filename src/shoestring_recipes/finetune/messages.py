"""Messages as chat templates need them, from those of a row: OpenAI's `role` and `content`, or ShareGPT's `from`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoestring.base.errors import nearest
from shoestring_recipes.finetune import calls, marks
from shoestring_recipes.finetune.formats import kind_of
from shoestring_recipes.finetune.rows import Message
from shoestring_recipes.rows import character_problem

ROLES = ("system", "developer", "user", "assistant", "tool")
FIRST_ROLES = ("system", "developer")
"""The roles of instructions, which the first message alone may have."""
_CALL_ROLES = ("function_call", "tool_call")
"""Roles of LLaMA-Factory and of ms-swift, whose content is a call in JSON."""
_OTHER_NAMES = {
    "human": "user",
    "gpt": "assistant",
    "observation": "tool",
    "tool_response": "tool",
    "function": "tool",
}
"""Roles of ShareGPT, LLaMA-Factory and ms-swift, and OpenAI's deprecated `function`."""


def parse_messages(value: object, name: str) -> tuple[Message, ...]:
    """Return the messages of the column `name`, with the parts of each content joined to one text.

    Raises ValueError with the reason if they are no messages, or have no content that a model could learn or answer.
    """
    if not isinstance(value, list):
        raise ValueError(f"{name} is {kind_of(value)}, not a list of messages")
    if not value:
        raise ValueError(f"{name} is an empty list")
    messages: list[Message] = []
    for number, message in enumerate(value, start=1):
        parsed = _parse_message(message, f"message {number} of {name}")
        if messages and _continues(message, parsed, messages[-1]):
            tool_calls = [*messages[-1].get("tool_calls", ()), *parsed["tool_calls"]]
            messages[-1] = {**messages[-1], "tool_calls": tool_calls}
        else:
            messages.append(parsed)
    return tuple(messages)


def require_answer(messages: Sequence[Message], name: str) -> None:
    """Raise ValueError if none of the messages is the assistant's."""
    if not any(message["role"] == "assistant" for message in messages):
        raise ValueError(f"{name} has no message of the assistant")


def _continues(raw: Mapping[str, Any], parsed: Message, previous: Message) -> bool:
    """Return whether a call belongs to the answer before it, as one of several calls or after its text."""
    is_call = raw.get("role", raw.get("from")) in _CALL_ROLES
    return is_call and previous["role"] == "assistant" and marks.reason(parsed) == marks.reason(previous)


def _parse_message(message: object, place: str) -> Message:
    if not isinstance(message, dict):
        raise ValueError(f"{place} is {kind_of(message)}, not an object with role and content")
    # A key without a value is none: tables give every message the keys of all.
    message = {key: value for key, value in message.items() if value is not None}
    if "role" not in message and "from" in message:
        message = _from_sharegpt(message)
    role = message.get("role")
    if role is None:
        raise ValueError(f"{place} has no role")
    if role in _CALL_ROLES:
        tool_calls = calls.parse_call_text(message.pop("content", None), f"{place} ({role})")
        message |= {"role": "assistant", "tool_calls": tool_calls}
    elif isinstance(role, str):
        message["role"] = _OTHER_NAMES.get(role, role)
    role = message["role"]
    if role not in ROLES:
        raise ValueError(f"{place} has the unknown role {str(role)[:40]!r}; {nearest(str(role), ROLES)}")
    place = f"{place} ({role})"
    if role == "assistant" and "function_call" in message and "tool_calls" not in message:
        message["tool_calls"] = [message.pop("function_call")]  # the deprecated form of OpenAI
    tool_calls = calls.parse_calls(message.pop("tool_calls", []), place)
    if tool_calls:
        message["tool_calls"] = tool_calls
    content = message.get("content")
    if content is None and not (role == "assistant" and tool_calls):
        raise ValueError(f"{place} has no content")
    text = "" if content is None else _join_parts(content, place)
    if problem := character_problem(text):
        raise ValueError(f"{place} {problem}")
    if not text.strip() and role in ("user", "assistant") and not (role == "assistant" and tool_calls):
        raise ValueError(f"{place} is empty")
    marks.require_marks(message, text, place)
    return {**message, "content": text}


def _from_sharegpt(message: dict[str, Any]) -> dict[str, Any]:
    other_parts = {key: value for key, value in message.items() if key not in ("from", "value")}
    value = {"content": message["value"]} if "value" in message else {}
    return {"role": message["from"], **value, **other_parts}


def _join_parts(content: object, place: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError(f"{place}: its content is {kind_of(content)}, not a text")
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else kind_of(part)
        if kind != "text":
            raise ValueError(f"{place}: its content has a part of the type {str(kind)[:40]!r}; only texts can be used")
        if not isinstance(part.get("text"), str):
            raise ValueError(f"{place}: its content has a part without a text")
    return "".join(part["text"] for part in content)
