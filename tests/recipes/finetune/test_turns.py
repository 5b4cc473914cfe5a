"""Conversations in an order from which a model would not learn what they seem to teach."""

import json
from pathlib import Path
from typing import Any

import pytest

from shoestring.base.errors import DataError
from shoestring_recipes.finetune.data import read_parts
from shoestring_recipes.finetune.rendering import DEVELOPER_AS_SYSTEM, Renderer
from shoestring_recipes.finetune.rows import Conversation
from shoestring_recipes.finetune.turns import TurnsError, require_turns, turn_notes
from tests.recipes.finetune.tokenizers import CHATML, make_tokenizer, tokenizer_for, trl_templates

SYSTEM = {"role": "system", "content": "Be brief."}
ASK = {"role": "user", "content": "What is two plus two?"}
MORE = {"role": "user", "content": "Hello, hello!"}
ANSWER = {"role": "assistant", "content": "It is four."}
TOOL = {"role": "tool", "content": "4"}


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([ASK, ANSWER, MORE], "the conversation ends with the user: nothing is learned after the last message"),
        ([ASK, MORE, ANSWER], "messages 1 and 2 are both of the user, without an answer between them"),
        ([SYSTEM, ASK, ANSWER, ASK, MORE], "messages 4 and 5 are both of the user"),
        ([ASK, SYSTEM, ANSWER], "message 2 has the role system, which only the first one may have"),
        ([ASK, ANSWER, {**SYSTEM, "role": "developer"}], "message 3 has the role developer"),
        ([SYSTEM, {**SYSTEM, "role": "developer"}, ASK, ANSWER], "message 2 has the role developer"),
    ],
)
def test_an_order_that_is_not_learned_is_refused(messages: list[dict[str, str]], reason: str) -> None:
    with pytest.raises(TurnsError, match=reason.split(":")[0]):
        require_turns(messages)


@pytest.mark.parametrize(
    "messages", [[ASK, ANSWER], [SYSTEM, ANSWER, ASK, ANSWER], [ASK, ANSWER, TOOL], [ASK, ANSWER, TOOL, ANSWER]]
)
def test_other_orders_are_not(messages: list[dict[str, str]]) -> None:
    require_turns(messages)


def test_unusual_orders_are_counted() -> None:
    assert turn_notes([[SYSTEM, ANSWER, ASK, ANSWER], [ASK, ANSWER, ANSWER], [ASK, ANSWER]]) == [
        "conversations that begin with the assistant, whose first answer has no prompt: 1",
        "conversations with two answers in succession, of which the model learns to answer itself: 1",
    ]


def read(path: Path, rows: list[dict[str, Any]], template: str = CHATML, **options: Any) -> Any:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    renderer = Renderer(make_tokenizer(template), seq_len=4096)
    defaults = {"columns": None, "method": "sft", "on_bad_rows": "refuse", "validation": 0, "seed": 0}
    return read_parts(path, **{**defaults, **options}, describe=renderer.describe_turns)


def test_rows_are_named_with_what_the_template_makes_of_them(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    rows = [{"messages": messages} for messages in ([ASK, ANSWER], [ASK, ANSWER, MORE], [ASK, MORE, ANSWER])]
    with pytest.raises(DataError, match="2 of 3 rows cannot be used") as caught:
        read(file, rows)
    ending, repeated = caught.value.problems
    assert ending.startswith(
        f"{file}, line 2: the conversation ends with the user: nothing is learned after the last message; the chat "
        "template writes at their end: ...'"
    )
    assert ending.endswith(r"<|im_end|>\n<|im_start|>user\nHello, hello!<|im_end|>\n'")
    assert repeated.startswith(
        f"{file}, line 3: messages 1 and 2 are both of the user, without an answer between them; the chat template"
    )
    assert "on_bad_rows=skip" in str(caught.value.hint)
    assert len(read(file, rows, on_bad_rows="skip").train) == 1
    strict = "{% if messages[-1].role == 'user' %}{{ raise_exception('roles must alternate') }}{% endif %}" + CHATML
    with pytest.raises(DataError) as caught:
        read(file, rows[:2], strict)
    assert caught.value.problems[0].endswith("; the chat template rejects them: roles must alternate")


@pytest.mark.parametrize(
    ("method", "row"),
    [
        ("sft", {"prompt": [ASK, MORE], "completion": [ANSWER]}),
        ("sft", {"prompt": [ASK], "completion": [ANSWER, MORE]}),
        ("sft", {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"},
                                   {"from": "human", "value": "c"}]}),
        ("dpo", {"prompt": [ASK, MORE], "chosen": [ANSWER], "rejected": [{**ANSWER, "content": "Five."}]}),
        ("dpo", {"chosen": [ASK, ANSWER, MORE], "rejected": [ASK, {**ANSWER, "content": "Five."}]}),
    ],
)  # fmt: skip
def test_all_forms_are_examined(tmp_path: Path, method: str, row: dict[str, Any]) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path / "a.jsonl", [row], method=method)
    assert "the user" in caught.value.problems[0]
    assert "their columns have the right names" in str(caught.value.hint)


def test_developers_are_the_system_where_the_template_does_not_know_them() -> None:
    developer = {"role": "developer", "content": "Be brief."}
    renderer = Renderer(make_tokenizer(), seq_len=4096)
    for messages in ((developer, ASK), (SYSTEM, ASK)):
        assert renderer.decode(renderer.prompt(messages), skip_special=False).startswith(
            "<|im_start|>system\nBe brief."
        )
    assert renderer.converts(developer) == DEVELOPER_AS_SYSTEM
    gptoss = trl_templates().get("gptoss")
    if gptoss:
        own = Renderer(tokenizer_for(gptoss), seq_len=4096)
        assert "developer" in own.decode(
            own.render(Conversation(place="", messages=(developer, ASK, ANSWER))).tokens, False
        )
        assert own.converts(developer) == ""
