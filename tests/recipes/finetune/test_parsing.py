import json
from typing import Any

import pytest

from shoestring.base.errors import UsageError
from shoestring_recipes.finetune.columns import parse_columns
from shoestring_recipes.finetune.parsing import parse_cells, parse_row
from shoestring_recipes.finetune.rows import Completion, Conversation, Pair, Row, Text

PLACE = "a.jsonl, line 1"
SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "Hi?"}
ANSWER = {"role": "assistant", "content": "Hello."}
OTHER = {"role": "assistant", "content": "Go away."}
TOOL = {"type": "function", "function": {"name": "f"}}


def parse(raw: dict[str, Any], method: str = "sft", columns: str | None = None) -> Row:
    return parse_row(raw, PLACE, method, parse_columns(columns))


def conversation(*messages: dict[str, Any], tools: tuple[dict[str, Any], ...] | None = None) -> Conversation:
    return Conversation(place=PLACE, messages=messages, tools=tools)


@pytest.mark.parametrize("tools", [[TOOL], json.dumps([TOOL])])
def test_messages_with_tools(tools: object) -> None:
    assert parse({"messages": [SYSTEM, QUESTION, ANSWER], "tools": tools, "id": 7}) == conversation(
        SYSTEM, QUESTION, ANSWER, tools=(TOOL,)
    )


@pytest.mark.parametrize("tools", [None, [], "", "[]"])
def test_no_tools(tools: object) -> None:
    assert parse({"messages": [QUESTION, ANSWER], "tools": tools}) == conversation(QUESTION, ANSWER)


def test_an_assistant_may_call_tools_instead_of_answering() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [TOOL]}
    result = {"role": "tool", "content": "", "name": "f"}
    assert parse({"messages": [QUESTION, call, result]}) == conversation(QUESTION, {**call, "content": ""}, result)


def test_parts_of_a_content_are_joined() -> None:
    parts = [{"type": "text", "text": "Hi"}, {"type": "text", "text": "?"}]
    assert parse({"messages": [{"role": "user", "content": parts}, ANSWER]}) == conversation(QUESTION, ANSWER)


@pytest.mark.parametrize("column", ["messages", "conversations"])
def test_messages_of_sharegpt(column: str) -> None:
    sharegpt = [
        {"from": "system", "value": "Be brief."},
        {"from": "human", "value": "Hi?"},
        {"from": "gpt", "value": "Hello."},
    ]
    assert parse({column: sharegpt}) == conversation(SYSTEM, QUESTION, ANSWER)


def test_prompt_and_completion_as_texts_and_as_messages() -> None:
    assert parse({"prompt": "Hi?", "completion": " Hello."}) == Completion(
        place=PLACE, prompt="Hi?", completion=" Hello."
    )
    assert parse({"prompt": [QUESTION], "completion": [ANSWER]}) == Completion(
        place=PLACE, prompt=(QUESTION,), completion=(ANSWER,)
    )


@pytest.mark.parametrize(
    ("extra", "question"), [({}, "Add"), ({"input": ""}, "Add"), ({"input": "1, 2"}, "Add\n\n1, 2")]
)
def test_instructions_of_alpaca(extra: dict[str, str], question: str) -> None:
    assert parse({"instruction": "Add", "output": "3", **extra}) == Completion(
        place=PLACE,
        prompt=({"role": "user", "content": question},),
        completion=({"role": "assistant", "content": "3"},),
    )


PAIR = [["Hi?", "Hello."], ["More?", "Yes."]]
BEFORE = (QUESTION, ANSWER, {"role": "user", "content": "More?"}, {"role": "assistant", "content": "Yes."})
LAST = ({"role": "user", "content": "Add"}, {"role": "assistant", "content": "3"})


@pytest.mark.parametrize(
    "row",
    [
        {"instruction": "Add", "output": "3"},
        {"prompt": "Add", "completion": "3"},
        {"prompt": [LAST[0]], "completion": [LAST[1]]},
        {"messages": list(LAST)},
        {"conversations": [{"from": "human", "value": "Add"}, {"from": "gpt", "value": "3"}]},
    ],
)
def test_the_column_system_is_the_first_message(row: dict[str, Any]) -> None:
    parsed: Any = parse({"system": "Be brief.", **row})
    messages = parsed.messages if isinstance(parsed, Conversation) else (*parsed.prompt, *parsed.completion)
    assert messages == (SYSTEM, *LAST)
    assert parse({"system": "", **row}) == parse(row) == parse({"system": None, **row})


def test_the_column_system_may_repeat_the_first_message_but_not_differ_from_it() -> None:
    row = {"messages": [SYSTEM, QUESTION, ANSWER]}
    assert parse({"system": "Be brief.", **row}) == parse(row)
    with pytest.raises(ValueError, match="the column system differs from the first message of messages"):
        parse({"system": "Be long.", **row})


@pytest.mark.parametrize("history", [PAIR, json.dumps(PAIR)])
def test_history_precedes_the_question_and_is_learned(history: object) -> None:
    """LLaMA-Factory learns the answers of a history as well."""
    for row in ({"instruction": "Add", "output": "3"}, {"prompt": "Add", "completion": "3"}):
        assert parse({"history": history, **row}) == conversation(*BEFORE, *LAST)
        assert parse({"history": history, "system": "Be brief.", **row}) == conversation(SYSTEM, *BEFORE, *LAST)
    row = {"prompt": [SYSTEM, LAST[0]], "completion": [LAST[1]], "history": history}
    assert parse(row) == conversation(SYSTEM, *BEFORE, *LAST)


def test_an_empty_history_is_none() -> None:
    row = {"instruction": "Add", "output": "3"}
    assert parse({**row, "history": []}) == conversation(*LAST)
    assert parse({**row, "history": None}) == parse(row)


@pytest.mark.parametrize(
    ("history", "reason"),
    [
        ({}, "history is an object, not a list of pairs of a question and its answer"),
        ([["a"]], "item 1 of history is not a pair of a question and its answer"),
        ([QUESTION], "item 1 of history is not a pair of a question and its answer"),
        ([["a", 3]], "item 1 of history is a number, not a text"),
        ("[[", "history is a text that is not valid JSON"),
    ],
)
def test_a_history_that_is_none_is_refused(history: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse({"instruction": "Add", "output": "3", "history": history})


def test_pairs_have_a_system_too() -> None:
    row = {"prompt": "Hi?", "chosen": "Hello.", "rejected": "Go away.", "system": "Be brief."}
    pair = Pair(place=PLACE, prompt=(SYSTEM, QUESTION), chosen=(ANSWER,), rejected=(OTHER,))
    assert parse(row, "dpo") == pair
    row = {"chosen": [QUESTION, ANSWER], "rejected": [QUESTION, OTHER], "system": "Be brief."}
    assert parse(row, "dpo") == pair


def test_all_columns_have_other_names() -> None:
    columns = "messages:chat,system:rules,tools:apis"
    row = {"chat": [QUESTION, ANSWER], "rules": "Be brief.", "apis": json.dumps([TOOL["function"]])}
    assert parse(row, columns=columns) == conversation(SYSTEM, QUESTION, ANSWER, tools=(TOOL,))
    alpaca = {"task": "Add", "reply": "3", "past": PAIR, "numbers": "1, 2"}
    parsed: Any = parse(alpaca, columns="instruction:task,output:reply,history:past,input:numbers")
    assert parsed.messages[-2]["content"] == "Add\n\n1, 2"
    assert len(parsed.messages) == 6


@pytest.mark.parametrize("column", ["tools", "functions"])
def test_bare_functions_are_tools(column: str) -> None:
    row = {"messages": [QUESTION, ANSWER], column: [TOOL["function"]]}
    assert parse(row) == conversation(QUESTION, ANSWER, tools=(TOOL,))


def test_text() -> None:
    assert parse({"text": "Once."}) == Text(place=PLACE, text="Once.")


def test_a_row_of_several_forms_has_the_most_specific() -> None:
    row = {
        "text": "Once.",
        "instruction": "Add",
        "output": "3",
        "prompt": "Hi?",
        "completion": "Hello.",
        "conversations": [QUESTION, OTHER],
        "messages": [QUESTION, ANSWER],
        "chosen": "x",
        "rejected": "y",
    }
    found = []
    for removed in ("messages", "conversations", "completion", "output", None):
        found.append(parse(row))
        row = {name: value for name, value in row.items() if name != removed}
    assert found[:2] == [conversation(QUESTION, ANSWER), conversation(QUESTION, OTHER)]
    assert [type(item) for item in found[2:]] == [Completion, Completion, Text]
    assert parse({**row, "messages": None}) == Text(place=PLACE, text="Once.")


def test_pairs_with_a_prompt() -> None:
    assert parse({"prompt": "Hi?", "chosen": "Hello.", "rejected": "Go."}, "dpo") == Pair(
        place=PLACE, prompt="Hi?", chosen="Hello.", rejected="Go."
    )
    row = {"prompt": [QUESTION], "chosen": [ANSWER], "rejected": [OTHER], "tools": [TOOL]}
    assert parse(row, "dpo") == Pair(
        place=PLACE, prompt=(QUESTION,), chosen=(ANSWER,), rejected=(OTHER,), tools=(TOOL,)
    )


@pytest.mark.parametrize("extra", [{}, {"prompt": None}, {"prompt": "Hi?\n"}])
def test_pairs_of_whole_conversations(extra: dict[str, Any]) -> None:
    row = {"chosen": [SYSTEM, QUESTION, ANSWER], "rejected": [SYSTEM, QUESTION, OTHER], **extra}
    assert parse(row, "dpo") == Pair(place=PLACE, prompt=(SYSTEM, QUESTION), chosen=(ANSWER,), rejected=(OTHER,))


def test_columns_have_other_names() -> None:
    row = {"question": "Hi?", "answer": "Hello.", "prompt": 3, "messages": "not ours"}
    assert parse(row, columns="prompt:question, completion:answer") == Completion(
        place=PLACE, prompt="Hi?", completion="Hello."
    )
    assert parse({"chat": [QUESTION, ANSWER]}, columns="messages:chat") == conversation(QUESTION, ANSWER)


@pytest.mark.parametrize(
    ("columns", "problems"),
    [
        ("", ("'' is not ours:theirs",)),
        ("chat", ("'chat' is not ours:theirs",)),
        ("mesages:chat", ("'mesages' is not one of our columns; did you mean messages?",)),
        (
            "prompt:a,prompt:b,completion:a,text:",
            ("prompt is given twice", "your column 'a' is given twice", "'text:' is not ours:theirs"),
        ),
    ],
)
def test_columns_that_cannot_be_used_are_reported_together(columns: str, problems: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as refused:
        parse_columns(columns)
    assert refused.value.message == f"columns={columns} cannot be used"
    assert refused.value.problems == problems
    assert "prompt:question,completion:answer" in str(refused.value.hint)


def test_cells_of_csv_hold_messages_as_json() -> None:
    messages = [QUESTION, ANSWER]
    cells = {"chat": json.dumps(messages), "chosen": json.dumps([ANSWER]), "text": "", "id": "[1]"}
    assert parse_cells(cells, {"messages": "chat"}) == {"chat": messages, "chosen": [ANSWER], "text": None, "id": "[1]"}


@pytest.mark.parametrize("text", ["[1] is right", "[1]", '[{"a": 1}]', "[", "[NaN]"])
def test_cells_that_begin_with_a_bracket_may_be_texts(text: str) -> None:
    assert parse_cells({"completion": text}, {}) == {"completion": text}


def test_an_empty_cell_of_brackets_is_a_text() -> None:
    assert parse_cells({"completion": "[]"}, {}) == {"completion": "[]"}
