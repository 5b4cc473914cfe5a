"""The order of the messages in a conversation: what a template may accept, though the model learns the wrong thing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from shoestring_recipes.finetune.messages import FIRST_ROLES
from shoestring_recipes.finetune.rows import Message


class TurnsError(ValueError):
    """Messages are in an order from which a model would not learn what they seem to teach."""

    def __init__(self, message: str, messages: Sequence[Message]) -> None:
        super().__init__(message)
        self.messages = messages


def require_turns(messages: Sequence[Message]) -> None:
    """Raise TurnsError for a conversation that ends with the user, or has two messages of the user in succession.

    The same for instructions that are not at its beginning.
    """
    roles = [message["role"] for message in messages]
    for number, role in enumerate(roles[1:], start=2):
        if role in FIRST_ROLES:
            raise TurnsError(f"message {number} has the role {role}, which only the first one may have", messages)
        if role == roles[number - 2] == "user":
            problem = f"messages {number - 1} and {number} are both of the user, without an answer between them"
            raise TurnsError(problem, messages)
    if roles[-1] == "user":
        raise TurnsError("the conversation ends with the user: nothing is learned after the last message", messages)


def turn_notes(conversations: Sequence[Sequence[Message]]) -> list[str]:
    """Return what is unusual in the order of messages, but can be learned."""
    begins = sum(
        next((m["role"] for m in item if m["role"] not in FIRST_ROLES), "") == "assistant" for item in conversations
    )
    answers = sum(_has_two_answers(messages) for messages in conversations)
    notes = []
    if begins:
        notes.append(f"conversations that begin with the assistant, whose first answer has no prompt: {begins:,}")
    if answers:
        notes.append(
            f"conversations with two answers in succession, of which the model learns to answer itself: {answers:,}"
        )
    return notes


def _has_two_answers(messages: Sequence[Message]) -> bool:
    roles = [message["role"] for message in messages]
    return any(pair == ("assistant", "assistant") for pair in pairwise(roles))
