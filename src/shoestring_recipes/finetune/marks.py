"""Marks of a message that say whether it is learned, as other tools write them.

    weight 0 or 1           OpenAI (quoted in community.openai.com/t/1060699), mistral-finetune (axolotl#1702)
    train true or false     axolotl (prompt_strategies/chat_template.py), with `train_detail` for parts of a content
    loss_mask 0 or 1        verl (verl#5316)
    loss true or false      data for ms-swift, by its use in public files: an assumption

An answer without marks is learned. Fractions are refused: some tools multiply the loss by them, others divide by their
sum, and one accepts negative ones, so that a file does not say what it means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoestring_recipes.finetune.formats import kind_of
from shoestring_recipes.finetune.rows import Message

_DETAIL = "train_detail"
_SWITCHES = ("weight", "train", "loss", "loss_mask")
KEYS = frozenset({*_SWITCHES, _DETAIL})
"""The keys of a message that are marks. A chat template does not receive them."""


def require_marks(message: Mapping[str, Any], content: str, place: str) -> None:
    """Raise ValueError if a mark of a message is none that can be followed."""
    values = {name: switch(message[name], f"{place}: {name}") for name in _SWITCHES if message.get(name) is not None}
    if len(set(values.values())) > 1:
        texts = " and ".join(f"{name} {_text(message[name])}" for name in values)
        raise ValueError(f"{place}: its marks contradict each other: {texts}")
    if (parts := message.get(_DETAIL)) is not None:
        _require_parts(parts, content, f"{place}: {_DETAIL}")


def switch(value: object, name: str) -> bool:
    """Return whether a mark switches learning on. Raises ValueError for a value other than 0, 1, true and false."""
    if not isinstance(value, int | float):
        raise ValueError(f"{name} is {kind_of(value)}, not 0 (not learned) or 1 (learned)")
    if value not in (0, 1):
        raise ValueError(
            f"{name} is {value}; only 0 (not learned) and 1 (learned) can be used, because tools weigh by other "
            "numbers in different ways"
        )
    return bool(value)


def reason(message: Message) -> str:
    """Return why a message is not learned at all, such as `weight 0`; empty if it may be."""
    for name in _SWITCHES:
        if message.get(name) is not None and not message[name]:
            return f"{name} {_text(message[name])}"
    parts = message.get(_DETAIL)
    return f"no part of {_DETAIL} is learned" if parts is not None and not _ranges(parts) else ""


def loss_ranges(message: Message) -> list[tuple[int, int]] | None:
    """Return the characters of the content that are learned, the end excluded; None: all."""
    parts = message.get(_DETAIL)
    return None if parts is None else _ranges(parts)


def switched_on(message: Message) -> str:
    """Return the name of a mark that asks for learning; empty if there is none."""
    return next((name for name in _SWITCHES if message.get(name)), "")


def _ranges(parts: list[dict[str, Any]]) -> list[tuple[int, int]]:
    # The last character of a part belongs to it, as in axolotl.
    return [(part["begin_offset"], part["end_offset"] + 1) for part in parts if part["train"]]


def _require_parts(parts: object, content: str, name: str) -> None:
    if not isinstance(parts, list):
        raise ValueError(f"{name} is {kind_of(parts)}, not a list")
    for part in parts:
        if not isinstance(part, dict) or not isinstance(part.get("train"), bool):
            raise ValueError(f"{name} has a part without begin_offset, end_offset and train")
        first, last = (part.get(key) for key in ("begin_offset", "end_offset"))
        if type(first) is not int or type(last) is not int:
            raise ValueError(f"{name} has a part whose begin_offset or end_offset is no whole number")
        if not 0 <= first <= last < len(content):
            raise ValueError(f"{name} has a part from {first} to {last}, but the content has {len(content)} characters")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
