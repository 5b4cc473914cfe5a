"""The usable rows of the data, in one of the forms that the tools for fine-tuning have in common.

A message is a dictionary with `role` and `content`, and as a chat template may need them `name`, `tool_calls` and
others, as they are in the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Message: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """A row with `messages`, and perhaps the `tools` that the assistant may call."""

    place: str
    """File and line, for messages: `chats.jsonl, line 7`."""
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Completion:
    """A row with `prompt` and `completion`: both texts, or both lists of messages."""

    place: str
    prompt: str | tuple[Message, ...]
    completion: str | tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Text:
    """A row with `text`, every token of which is learned."""

    place: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A row with a preferred and a rejected answer to the same prompt: all texts, or all lists of messages."""

    place: str
    prompt: str | tuple[Message, ...]
    chosen: str | tuple[Message, ...]
    rejected: str | tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] | None = None


Row: TypeAlias = Conversation | Completion | Text | Pair


@dataclass(frozen=True, kw_only=True)
class RowParts:
    """The rows of training and of validation."""

    train: Sequence[Row]
    validation: Sequence[Row]
    notes: Sequence[str] = ()
    """Full sentences: skipped rows, duplicates, near-duplicates between the parts."""
