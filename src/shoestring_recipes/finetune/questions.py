"""What the model is text: the part of a row before the answer, whatever form the row has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shoestring.base.reading import parse_json
from shoestring_recipes.finetune.parsing import joined, parse_before
from shoestring_recipes.finetune.rows import Completion, Conversation, Message, Pair, Row

FORMS = "messages, prompt or text"
"""The columns of which a row has one, for messages."""
_ASKING = ("user", "tool")
"""The roles whose messages the assistant answers."""


class Renderer(Protocol):
    """Makes tokens of messages by the chat template of a tokenizer, and text of tokens."""

    stop_tokens: frozenset[int]

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None) -> list[int]:
        """Return the tokens of a conversation up to the beginning of the next answer."""

    def prompt_text(self, text: str) -> list[int]:
        """Return the tokens of a text that the model continues."""

    def question(self, text: str) -> list[int]:
        """Return the tokens of a text that the model answers."""

    def decode(self, tokens: list[int]) -> str:
        """Return the text of tokens."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A prompt, and the answer to it if that is known."""

    prompt: str | tuple[Message, ...]
    """A text, or the messages that the model answers."""
    tools: tuple[Mapping[str, Any], ...] | None = None
    target: str | None = None
    is_continued: bool = False
    """Whether the model continues the text instead of answering it."""

    def tokens(self, renderer: Renderer) -> list[int]:
        """Return the tokens of the prompt. Raises ValueError if there are none."""
        if isinstance(self.prompt, str):
            tokens = renderer.prompt_text(self.prompt) if self.is_continued else renderer.question(self.prompt)
        else:
            tokens = renderer.prompt(self.prompt, self.tools)
        if not tokens:
            raise ValueError("its prompt has no tokens")
        return tokens

    def text(self) -> str:
        """Return the prompt for people: a text or a single message as it is, several messages with their roles."""
        if isinstance(self.prompt, str):
            return self.prompt
        texts = [_text(message) for message in self.prompt]
        if len(texts) == 1:
            return texts[0]
        return "\n\n".join(f"{message['role']}: {text}" for message, text in zip(self.prompt, texts, strict=True))


def parse_question(row: Mapping[str, Any]) -> Question:
    """Return the question of a row as it is in a file: with `messages`, `prompt`, `text`, or `chosen` and `rejected`.

    In `messages`, an answer at the end is the target, and so is `completion`, or `chosen`, after a `prompt`. `messages`
    and `tools` may be JSON in a text, as in a CSV file. `system` and `history` precede the question. Raises ValueError
    with the reason if the row has no question.
    """
    tools, before = _tools(row.get("tools")), parse_before(row)
    messages = next((row[name] for name in ("messages", "chosen") if row.get(name) is not None), None)
    prompt = row.get("prompt")
    if row.get("messages") is None and prompt is not None:
        target = next((row[name] for name in ("completion", "chosen") if row.get(name) is not None), None)
        answer = _last_text(target)
        if isinstance(prompt, str):
            if not before:
                return Question(prompt=_filled("prompt", prompt), target=answer)
            question = {"role": "user", "content": _filled("prompt", prompt)}
            return Question(prompt=(*before, question), tools=tools, target=answer)
        asking = _asking(joined(before, _messages("prompt", prompt), "prompt"))
        return Question(prompt=asking, tools=tools, target=answer)
    if messages is not None:
        name = "messages" if row.get("messages") is not None else "chosen"
        conversation, answer = _messages(name, messages), None
        if conversation[-1]["role"] == "assistant":
            conversation, answer = conversation[:-1], _last_text(conversation)
        asking = _asking(joined(before, conversation, name)) if conversation else _asking(conversation)
        return Question(prompt=asking, tools=tools, target=answer)
    text = row.get("text")
    if isinstance(text, str):
        return Question(prompt=_filled("text", text), is_continued=True)
    raise ValueError(f"has none of {FORMS}" if text is None else f"its text is of type {type(text).__name__}")


def question_of(row: Row) -> Question:
    """Return the question of a row of the training data. Raises ValueError as `parse_question` does."""
    values: dict[str, Any] = {"tools": getattr(row, "tools", None)}
    if isinstance(row, Conversation):
        values |= {"messages": row.messages}
    elif isinstance(row, Completion):
        values |= {"prompt": row.prompt, "completion": row.completion}
    elif isinstance(row, Pair):
        values |= {"prompt": row.prompt, "chosen": row.chosen}
    else:
        values |= {"text": row.text}
    return parse_question(values)


def _messages(name: str, value: Any) -> tuple[Message, ...]:
    """Return a list of messages, perhaps JSON in a text, without the empty fields that a table gives each of them."""
    value = _parsed(name, value)
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"its {name} is not a list of messages")
    for index, message in enumerate(value):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ValueError(f"message {index + 1} of its {name} has no role")
    return tuple(
        {key: part for key, part in message.items() if part is not None or key == "content"} for message in value
    )


def _asking(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    if not messages:
        raise ValueError("has no message before the answer")
    if messages[-1]["role"] not in _ASKING:
        raise ValueError(f"its last message is one of the {messages[-1]['role']}, not of the user")
    return messages


def _tools(value: Any) -> tuple[Mapping[str, Any], ...] | None:
    value = _parsed("tools", value)
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(tool, Mapping) for tool in value):
        raise ValueError("its tools are not a list of objects")
    return tuple(value) or None


def _parsed(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value)
    except ValueError as error:
        raise ValueError(f"its {name} is a text that is not JSON: {error}") from None


def _last_text(value: Any) -> str | None:
    """Return an answer that is a text, or the text of its last message."""
    if isinstance(value, list | tuple) and value and isinstance(value[-1], Mapping):
        return _text(value[-1])
    return value if isinstance(value, str) else None


def _text(message: Message) -> str:
    """Return the text of a message: its content, the texts of its parts, or else all that it has."""
    content = message.get("content")
    if isinstance(content, list | tuple):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    if isinstance(content, str) and content:
        return content
    return str({name: value for name, value in message.items() if name not in ("role", "content")} or "")


def _filled(name: str, text: str) -> str:
    if not text.strip():
        raise ValueError(f"its {name} is empty")
    return text
