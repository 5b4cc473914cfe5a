import re

from shoestring_recipes.finetune.data import split
from shoestring_recipes.finetune.rows import Conversation, Pair
from shoestring_recipes.finetune.synthetic import conversations

ANSWER = re.compile(r"\nAnswer: [^\n]+$")


def test_conversations_end_in_the_format() -> None:
    parts = conversations()
    assert (len(parts.train), len(parts.validation)) == (200, 20)
    for row in (*parts.train, *parts.validation):
        assert isinstance(row, Conversation)
        assert row.messages[-2]["role"] == "user"
        assert all(ANSWER.search(message["content"]) for message in row.messages if message["role"] == "assistant")


def test_they_are_varied_and_no_question_is_in_both_parts() -> None:
    parts = conversations()
    questions = [
        {message["content"] for row in part for message in row.messages if message["role"] == "user"}  # type: ignore[union-attr]
        for part in (parts.train, parts.validation)
    ]
    assert not questions[0] & questions[1]
    assert {len(row.messages) for row in parts.train if isinstance(row, Conversation)} == {2, 3, 4, 5}
    assert len(split(parts.train, 0.1, 0)[1]) == 20


def test_no_question_is_repeated_in_many_rows() -> None:
    rows = conversations(3000).train
    questions = [m["content"] for row in rows for m in row.messages if m["role"] == "user"]  # type: ignore[union-attr]
    assert len(questions) == len(set(questions)) > 3000


def test_answers_are_right() -> None:
    sums = 0
    for row in conversations(seed=3).train:
        assert isinstance(row, Conversation)
        numbers = [int(text) for text in re.findall(r"\d+", row.messages[-2]["content"])]
        result = row.messages[-1]["content"].rpartition("Answer: ")[2]
        if "plus" in row.messages[-2]["content"]:
            sums += 1
            assert int(result) == sum(numbers)
    assert sums > 20


def test_pairs_prefer_the_right_answer_in_the_format() -> None:
    for row in conversations(method="dpo").train:
        assert isinstance(row, Pair) and isinstance(row.chosen, tuple) and isinstance(row.rejected, tuple)
        assert ANSWER.search(row.chosen[0]["content"])
        assert row.chosen != row.rejected
        assert row.prompt[-1]["role"] == "user"  # type: ignore[index]


def test_the_same_seed_gives_the_same_rows() -> None:
    assert conversations(50, seed=1) == conversations(50, seed=1) != conversations(50, seed=2)
    assert len(conversations(2).validation) == 1
