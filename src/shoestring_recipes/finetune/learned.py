"""Which characters of a conversation are learned: those of the assistant's turns, without what marks exclude."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from shoestring_recipes.finetune import marks, templates
from shoestring_recipes.finetune.rows import Message
from shoestring_recipes.template_limits import TemplateLimitError

TrainOn: TypeAlias = Literal["assistant", "completion", "all"]


def why_not(messages: Sequence[Message], turn: int, answers: Sequence[int], first: int, train_on: TrainOn) -> str:
    """Return why an answer is not learned; empty if it is."""
    if reason := marks.reason(messages[turn]):
        return reason
    if train_on == "all":
        return ""
    if turn == 0:
        return "no prompt precedes it"
    if turn < first:
        return "it is in the prompt"
    return (
        "train_on=completion learns the last answer alone" if train_on == "completion" and turn != answers[-1] else ""
    )


def without_excluded(
    messages: Sequence[Message], turns: Sequence[int], whole: str, spans: Sequence[templates.Span]
) -> list[templates.Span]:
    """Return the characters of answers, without the parts of them that are marked as not learned."""
    divided: list[templates.Span] = []
    for turn, span in zip(turns, spans, strict=True):
        parts = marks.loss_ranges(messages[turn])
        if parts is None:
            divided.append(span)
        else:
            divided += templates.find_part_spans(whole, span, str(messages[turn]["content"]), parts)
    return divided


def spans_of_turns(
    write: templates.Write,
    messages: Sequence[Message],
    answers: Sequence[int],
    trained: Sequence[int],
    whole: str,
    spans: Sequence[templates.Span],
) -> list[templates.Span]:
    """Return those of the characters that a template marks which belong to answers that are learned."""
    starts = {
        turn: templates.find_start(write, messages, turn, whole)
        for turn in answers
        if turn >= min(trained, default=len(messages))
    }
    if list(trained) == [turn for turn in answers if turn > 0] and all(
        marks.loss_ranges(messages[turn]) is None for turn in trained
    ):
        return list(spans)
    chosen: list[templates.Span] = []
    for span in spans:
        # Marks may begin before the prompt ends, so the answer is the last that begins before their end.
        turn = max((turn for turn, start in starts.items() if start < span[1]), default=-1)
        if turn in trained:
            chosen += without_excluded(messages, [turn], whole, [(max(span[0], starts[turn]), span[1])])
    return chosen


def all_but_excluded(
    write: templates.Write,
    markup: templates.Markup,
    messages: Sequence[Message],
    answers: Sequence[int],
    trained: Sequence[int],
    whole: str,
) -> list[templates.Span]:
    """Return the characters of a conversation without those of answers, or parts of them, that marks exclude."""
    marked = [
        turn
        for turn in answers
        if turn > 0 and (marks.reason(messages[turn]) or marks.loss_ranges(messages[turn]) is not None)
    ]
    spans, start = [], 0
    for turn, span in zip(marked, templates.find_answers(write, messages, marked, whole, markup), strict=True):
        spans.append((start, span[0]))
        if turn in trained:
            spans += without_excluded(messages, [turn], whole, [span])
        start = span[1]
    return [*spans, (start, len(whole))]


def explain(
    write: templates.Write,
    markup: templates.Markup,
    messages: Sequence[Message],
    reasons: Mapping[int, str],
    whole: str,
) -> list[tuple[templates.Span, str]]:
    """Return the characters of answers that are not learned, each with the reason, which `reasons` has by turn."""
    explained = []
    for turn, reason in reasons.items():
        try:
            span = (0, len(write(messages[:1], False).rstrip()))
            if turn:
                (span,) = templates.find_answers(write, messages, [turn], whole, markup)
        except TemplateLimitError:
            raise
        except Exception:  # noqa: BLE001  (its characters are not known: a template's code may raise anything)
            continue
        explained.append((span, f"message {turn + 1}: {reason}"))
    return explained
