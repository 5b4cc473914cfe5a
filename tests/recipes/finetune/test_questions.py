"""The question of a row in each of its forms."""

import json

import pytest

from shoestring_recipes.finetune.questions import Question, parse_question, question_of
from shoestring_recipes.finetune.rows import Completion, Conversation, Pair, Text
from tests.recipes.finetune.letters import ASSISTANT, STOP, USER, Letters

USER_A, USER_B = {"role": "user", "content": "a"}, {"role": "user", "content": "b"}
ANSWER = {"role": "assistant", "content": "yes"}
SYSTEM = {"role": "system", "content": "s"}


@pytest.mark.parametrize(
    ("row", "prompt", "target"),
    [
        ({"messages": [USER_A]}, (USER_A,), None),
        ({"messages": [USER_A, ANSWER]}, (USER_A,), "yes"),
        ({"messages": [USER_A, ANSWER, USER_B]}, (USER_A, ANSWER, USER_B), None),
        ({"messages": json.dumps([USER_A, ANSWER])}, (USER_A,), "yes"),
        ({"prompt": "a b"}, "a b", None),
        ({"prompt": "a", "completion": "yes"}, "a", "yes"),
        ({"prompt": [USER_A], "completion": [ANSWER]}, (USER_A,), "yes"),
        ({"prompt": "a", "chosen": "yes", "rejected": "no"}, "a", "yes"),
        ({"chosen": [USER_A, ANSWER], "rejected": [USER_A]}, (USER_A,), "yes"),
        ({"prompt": "a", "system": "s"}, (SYSTEM, USER_A), None),
        ({"messages": [USER_A, ANSWER], "system": "s"}, (SYSTEM, USER_A), "yes"),
        ({"prompt": "b", "history": [["a", "yes"]], "system": "s"}, (SYSTEM, USER_A, ANSWER, USER_B), None),
        ({"text": "once"}, "once", None),
        ({"text": "once", "messages": None, "prompt": None}, "once", None),
    ],
)
def test_forms_of_rows(row, prompt, target):
    question = parse_question(row)
    assert (question.prompt, question.target) == (prompt, target)
    assert question.is_continued == (prompt == "once")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "has none of messages, prompt or text"),
        ({"messages": []}, "its messages is not a list of messages"),
        ({"messages": "[{"}, "its messages is a text that is not JSON"),
        ({"messages": ["a"]}, "message 1 of its messages has no role"),
        ({"messages": [USER_A, {"content": "b"}]}, "message 2 of its messages has no role"),
        ({"messages": [ANSWER]}, "has no message before the answer"),
        ({"messages": [{"role": "system", "content": "s"}]}, "its last message is one of the system, not of the user"),
        ({"prompt": " "}, "its prompt is empty"),
        ({"prompt": 3}, "its prompt is not a list of messages"),
        ({"text": 3}, "its text is of type int"),
        ({"messages": [USER_A], "tools": ["f"]}, "its tools are not a list of objects"),
    ],
)
def test_unusable_rows(row, reason):
    with pytest.raises(ValueError, match=reason):
        parse_question(row)


def test_fields_that_a_table_leaves_empty_are_not_there():
    messages = [{"role": "user", "content": None, "name": None, "parts": 1}]
    assert parse_question({"messages": messages}).prompt == ({"role": "user", "content": None, "parts": 1},)


def test_rows_of_the_training_data():
    rows = [
        (Conversation(place="f", messages=(USER_A, ANSWER), tools=({"name": "g"},)), (USER_A,), "yes"),
        (Completion(place="f", prompt="a", completion="yes"), "a", "yes"),
        (Pair(place="f", prompt=(USER_A,), chosen=(ANSWER,), rejected=(ANSWER,)), (USER_A,), "yes"),
        (Text(place="f", text="once"), "once", None),
    ]
    for row, prompt, target in rows:
        question = question_of(row)
        assert (question.prompt, question.target) == (prompt, target)
    assert question_of(rows[0][0]).tools == ({"name": "g"},)


def test_tokens_and_text():
    question = Question(prompt=(USER_A, ANSWER, USER_B), tools=({},))
    assert question.tokens(Letters())[:3] == [1, USER, 10] and question.tokens(Letters())[-2:] == [STOP, ASSISTANT]
    assert question.text() == "user: a\n\nassistant: yes\n\nuser: b"
    assert Question(prompt=(USER_A,)).text() == "a"
    parts = {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]}
    assert Question(prompt=(parts,)).text() == "xy"
    assert Question(prompt="ab").tokens(Letters()) == [10, 11]
    with pytest.raises(ValueError, match="no tokens"):
        Question(prompt="").tokens(Letters())
