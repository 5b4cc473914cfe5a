"""Notes on what a chat template makes of the messages of all rows: what it leaves out, and what is changed for it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from shoestring.base.units import count_text, plural
from shoestring_recipes.finetune import marks
from shoestring_recipes.finetune.rendering import ROLE_PART, Renderer
from shoestring_recipes.finetune.rows import Conversation, Message, Pair, Row, Text
from shoestring_recipes.finetune.turns import turn_notes

_EXAMPLES = 8
"""The rows in which each part is tried: it is used if it has an effect in one of them."""


def template_notes(rows: Sequence[Row], renderer: Renderer) -> Iterator[str]:
    """Yield the notes on some rows that `renderer` can write, in full sentences."""
    conversations = [(messages, getattr(row, "tools", None)) for row in rows for messages in _conversations(row)]
    yield from turn_notes([messages for messages, _ in conversations])
    changed: Counter[str] = Counter()
    ignored: Counter[str] = Counter()
    not_answers: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    examples: dict[str, list[int]] = defaultdict(list)
    for number, (messages, tools) in enumerate(conversations):
        changed.update({change for message in messages if (change := renderer.converts(message))})
        ignored.update({reason for message in messages if (reason := _switched_off(message))})
        not_answers.update(
            mark for message in messages if message["role"] != "assistant" and (mark := marks.switched_on(message))
        )
        parts = Counter(part for message in messages for part in _parts(message))
        parts.update(["tools"] if tools else [])
        counts.update(parts)
        for part in parts:
            if len(examples[part]) < _EXAMPLES:
                examples[part].append(number)
    for change, count in changed.items():
        yield f"{plural(count, 'conversation')} {change}"
    for reason, count in ignored.items():
        yield f"{plural(count, 'conversation')} with answers that are not learned: {reason}"
    for mark, count in not_answers.items():
        yield f"{plural(count, 'message')} of others than the assistant with {mark}: not learned, as answers alone are"
    unused = [
        part
        for part in examples
        if not any(renderer.is_used(part, *conversations[number]) for number in examples[part])
    ]
    if keys := [f"{part} ({count_text(counts[part])})" for part in sorted(unused) if not _is_row_part(part)]:
        yield f"keys of messages that the chat template does not use, with the number of messages: {', '.join(keys)}"
    if lost := [f"{part} ({count_text(counts[part])})" for part in sorted(unused) if _is_row_part(part)]:
        yield f"the chat template leaves out: {', '.join(lost)}"


def has_marks(row: Row) -> bool:
    """Return whether a row has an answer that marks exclude, as a whole or in parts."""
    return any(map(_switched_off, (message for messages in _conversations(row) for message in messages)))


def _conversations(row: Row) -> list[Sequence[Message]]:
    """Return the conversations of a row, of a pair the one with the preferred answer; none of texts."""
    if isinstance(row, Text):
        return []
    if isinstance(row, Conversation):
        return [row.messages]
    answer = row.chosen if isinstance(row, Pair) else row.completion
    return [] if isinstance(row.prompt, str) or isinstance(answer, str) else [(*row.prompt, *answer)]


def _parts(message: Message) -> Iterator[str]:
    yield from (
        name
        for name, value in message.items()
        if value is not None and name not in ("role", "content") and name not in marks.KEYS
    )
    if message["role"] in ("system", "developer", "tool"):
        yield f"{ROLE_PART}{message['role']}"


def _is_row_part(part: str) -> bool:
    return part == "tools" or part.startswith(ROLE_PART)


def _switched_off(message: Message) -> str:
    if message["role"] != "assistant":
        return ""
    return marks.reason(message) or (
        "parts that train_detail excludes" if marks.loss_ranges(message) is not None else ""
    )
