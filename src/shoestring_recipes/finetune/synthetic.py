"""Synthetic conversations: small tasks whose answers all end in the same format, `Answer: ...`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numpy.random import RandomState

from shoestring_recipes.finetune.rows import Conversation, Message, Pair, Row, RowParts

NOTE = (
    "data is not set: --set data=PATH reads your conversations; "
    "these are synthetic sums and words, answered with `Answer: ...`"
)
SYSTEM = "Solve the task. End with `Answer:` and the result."
_VALIDATION = 11
"""One row in so many is of validation."""

_WORDS = (
    "anchor", "basket", "candle", "desert", "engine", "forest", "garden", "harbor", "island", "jacket", "kettle",
    "ladder", "magnet", "needle", "orange", "pencil", "quarry", "rocket", "saddle", "tunnel", "valley", "window",
)  # fmt: skip


def conversations(count: int = 220, *, method: str = "sft", seed: int = 0) -> RowParts:
    """Return `count` rows of different tasks, one in 11 for validation; the same arguments give the same rows.

    With `method` `dpo` they are pairs of which the rejected answer is wrong or not in the format.
    """
    # The stream of RandomState is frozen; that of newer generators may change between NumPy versions.
    random = RandomState(seed)
    questions: set[str] = set()
    rows: list[Row] = []
    for number in range(1, count + 1):
        messages: list[Message] = [_message("system", SYSTEM)] if random.randint(4) == 0 else []
        if random.randint(4) == 0:
            earlier = _new_task(random, questions)
            messages += [_message("user", earlier.question), _message("assistant", earlier.answer)]
        task = _new_task(random, questions)
        messages.append(_message("user", task.question))
        place, answer = f"synthetic row {number}", _message("assistant", task.answer)
        if method == "dpo":
            rejected = _message("assistant", task.wrong_answer if random.randint(2) else task.unformatted_answer)
            rows.append(Pair(place=place, prompt=tuple(messages), chosen=(answer,), rejected=(rejected,)))
        else:
            rows.append(Conversation(place=place, messages=(*messages, answer)))
    train_count = count - max(1, count // _VALIDATION)
    return RowParts(train=rows[:train_count], validation=rows[train_count:], notes=(NOTE,))


@dataclass(frozen=True, kw_only=True)
class _Task:
    """A question with its result, a wrong result, and the reasoning that precedes them."""

    question: str
    reasoning: str
    result: str
    wrong_result: str

    @property
    def answer(self) -> str:
        return f"{self.reasoning}\nAnswer: {self.result}"

    @property
    def wrong_answer(self) -> str:
        return f"{self.reasoning}\nAnswer: {self.wrong_result}"

    @property
    def unformatted_answer(self) -> str:
        return f"I think that it is {self.result}."


def _new_task(random: RandomState, questions: set[str]) -> _Task:
    """Return a task that is not among `questions`, and add it there."""
    while True:
        task = _TASKS[random.randint(len(_TASKS))](random)
        if task.question not in questions:
            questions.add(task.question)
            return task


def _add(random: RandomState) -> _Task:
    first, second = random.randint(2, 500), random.randint(2, 500)
    return _Task(
        question=f"What is {first} plus {second}?",
        reasoning=f"I add {second} to {first}.",
        result=str(first + second),
        wrong_result=str(first + second + 10),
    )


def _subtract(random: RandomState) -> _Task:
    spent, left = random.randint(2, 500), random.randint(2, 500)
    return _Task(
        question=f"I have {spent + left} coins and spend {spent}. How many are left?",
        reasoning=f"I take {spent} away from {spent + left}.",
        result=str(left),
        wrong_result=str(left + 1),
    )


def _compare(random: RandomState) -> _Task:
    first = random.randint(100, 500)
    second = first + random.randint(1, 100) * (1 if random.randint(2) else -1)
    low, high = sorted((first, second))
    return _Task(
        question=f"Which is larger, {first} or {second}?",
        reasoning=f"{low} is less than {high}.",
        result=str(high),
        wrong_result=str(low),
    )


def _reverse(random: RandomState) -> _Task:
    words = [_WORDS[random.randint(len(_WORDS))] for _ in range(3)]
    return _Task(
        question=f"Write these words in reverse order: {', '.join(words)}.",
        reasoning="I begin with the last one.",
        result=", ".join(reversed(words)),
        wrong_result=", ".join([*reversed(words), words[0]]),
    )


_TASKS: tuple[Callable[[RandomState], _Task], ...] = (_add, _subtract, _compare, _reverse)


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
