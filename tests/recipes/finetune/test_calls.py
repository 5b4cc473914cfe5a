"""Calls of tools: every way of writing them, for templates that write objects and for those that need text."""

import json
from typing import Any

import pytest

from shoestring.base.errors import DataError
from shoestring_recipes.finetune.messages import parse_messages
from shoestring_recipes.finetune.rendering import ARGUMENTS_AS_OBJECTS, ARGUMENTS_AS_TEXT, Renderer
from shoestring_recipes.finetune.rows import Conversation
from tests.recipes.finetune.test_rendering import learned_texts
from tests.recipes.finetune.tokenizers import CHATML, make_tokenizer, tokenizer_for, trl_templates

ASK = {"role": "user", "content": "What is two plus two?"}
ARGUMENTS = {"city": "Zürich", "days": 2}
TEXT = json.dumps(ARGUMENTS)
TOOL = {"type": "function", "function": {"name": "weather", "description": "", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": ""},
                                     "days": {"type": "integer", "description": ""}}}}}  # fmt: skip


def calls_template(arguments: str) -> str:
    """Return a template that writes the arguments of calls by this code."""
    call = "{% for call in message.tool_calls %}<call>{{ call.function.name }} " + arguments + "</call>{% endfor %}"
    content = "{{ message['content'] }}{% if message.tool_calls is defined %}" + call + "{% endif %}"
    return CHATML.replace("{{ message['content'] }}", content)


AS_JSON = calls_template("{{ call.function.arguments | tojson }}")
AS_ITEMS = calls_template("{% for name, value in call.function.arguments | items %}{{ name }}={{ value }};{% endfor %}")
AS_EITHER = calls_template(
    "{% if call.function.arguments is string %}{{ call.function.arguments }}"
    "{% else %}{{ call.function.arguments | tojson }}{% endif %}"
)
AS_TEXT = calls_template("{{ '' + call.function.arguments }}")
AS_PRINTED_TEXT = calls_template("{{ call.function.arguments }}")


def call(arguments: object) -> dict[str, Any]:
    function = {"name": "weather", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}


def rendered(template: str, message: dict[str, Any]) -> tuple[str, str]:
    """Return what is learned of a call, and what was changed for the template."""
    messages = parse_messages([ASK, message], "messages")
    renderer = Renderer(make_tokenizer(template), seq_len=4096)
    (text,) = learned_texts(renderer, renderer.render(Conversation(place="", messages=messages)))
    return text.removesuffix("<|im_end|>"), renderer.converts(messages[1])


@pytest.mark.parametrize("arguments", [ARGUMENTS, TEXT], ids=["object", "text"])
def test_arguments_are_written_once_as_the_template_needs_them(arguments: object) -> None:
    is_text = isinstance(arguments, str)
    note = ARGUMENTS_AS_OBJECTS if is_text else ""
    assert rendered(AS_JSON, call(arguments)) == ('<call>weather {"city": "Zürich", "days": 2}</call>', note)
    assert rendered(AS_ITEMS, call(arguments)) == ("<call>weather city=Zürich;days=2;</call>", note)
    assert rendered(AS_EITHER, call(arguments)) == ('<call>weather {"city": "Zürich", "days": 2}</call>', note)
    for template in (AS_TEXT, AS_PRINTED_TEXT):
        text, change = rendered(template, call(arguments))
        assert json.loads(text.removeprefix("<call>weather ").removesuffix("</call>")) == ARGUMENTS
        assert change == ("" if is_text else ARGUMENTS_AS_TEXT)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "tool_calls": [{"name": "weather", "arguments": TEXT}]},
        {"role": "assistant", "tool_calls": json.dumps(call(TEXT)["tool_calls"])},
        {"role": "assistant", "function_call": {"name": "weather", "arguments": TEXT}},
        {"from": "function_call", "value": json.dumps({"name": "weather", "arguments": ARGUMENTS})},
        {"from": "function_call", "value": json.dumps([{"name": "weather", "arguments": ARGUMENTS}])},
        {"role": "function_call", "content": json.dumps({"name": "weather", "arguments": TEXT})},
    ],
    ids=["bare", "text", "function_call", "sharegpt", "list", "role"],
)
def test_calls_are_written_alike(message: dict[str, Any]) -> None:
    assert rendered(AS_JSON, message)[0] == '<call>weather {"city": "Zürich", "days": 2}</call>'


@pytest.mark.parametrize("arguments", ["", None, "{}", {}])
def test_no_arguments_are_an_empty_object(arguments: object) -> None:
    assert rendered(AS_JSON, call(arguments))[0] == "<call>weather {}</call>"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (call('{"city": Oslo}'), "message 2 of messages (assistant): tool_calls: the text of the arguments of weather "
         "is not valid JSON: Expecting value at character 10"),
        (call(json.dumps(TEXT)), "the arguments of weather are a text within a text: their JSON was encoded twice"),
        (call("[1]"), "the arguments of weather are a list, not an object"),
        (call(3), "the arguments of weather are a number, not an object"),
        ({"from": "function_call", "value": "weather()"}, "message 2 of messages (function_call): its content is not "
         "valid JSON: Expecting value at character 1"),
        ({"from": "function_call", "value": "[3]"}, "its content has an entry without the name of a function"),
        ({"role": "assistant", "tool_calls": "[{"}, "tool_calls is not valid JSON: Expecting property name"),
    ],
)  # fmt: skip
def test_broken_calls_are_refused_with_their_position(message: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match="message 2 of messages") as caught:
        parse_messages([ASK, message], "messages")
    assert reason in str(caught.value)


def test_answers_of_tools_have_one_role() -> None:
    for message in ({"from": "observation", "value": "4"}, {"role": "function", "name": "f", "content": "4"}):
        (parsed,) = parse_messages([message], "messages")
        assert (parsed["role"], parsed["content"]) == ("tool", "4")


def test_calls_in_succession_are_those_of_one_answer() -> None:
    """As ms-swift writes parallel calls, and an answer that calls a tool after its text."""
    first, second = ({"role": "tool_call", "content": json.dumps({"name": name, "arguments": {}})} for name in "ab")
    answers = [{"role": "tool_response", "content": "1"}, {"role": "tool_response", "content": "2"}]
    text = {"role": "assistant", "content": "I look."}
    parsed = parse_messages([ASK, text, first, second, *answers, {**text, "weight": 0}, first], "messages")
    assert [message["role"] for message in parsed] == ["user", "assistant", "tool", "tool", "assistant", "assistant"]
    assert [call["function"]["name"] for call in parsed[1]["tool_calls"]] == ["a", "b"]
    assert parsed[1]["content"] == "I look."


def test_keys_without_a_value_are_none() -> None:
    content = "{{ message['content'] }}"
    strict = CHATML.replace(content, content + "{{ 'calls' if message.tool_calls is defined }}")
    assert rendered(strict, {"role": "assistant", "content": "Four.", "tool_calls": None})[0] == "Four."
    assert rendered(strict, {"role": "assistant", "content": "Four.", "tool_calls": []})[0] == "Four."


def test_calls_that_a_template_leaves_out_are_refused() -> None:
    with pytest.raises(DataError) as caught:
        rendered(CHATML, call(TEXT))
    assert caught.value.problems == (": message 2: the template leaves out its tool calls",)


@pytest.mark.parametrize("name", trl_templates())
def test_every_template_of_trl_writes_the_arguments_or_refuses(name: str) -> None:
    """Of one call, text and object give the same tokens: never Python's notation, never a text within a text."""
    renderer = Renderer(tokenizer_for(trl_templates()[name]), seq_len=4096)
    texts = []
    for arguments in (ARGUMENTS, TEXT):
        message = call(arguments)
        message["tool_calls"][0]["id"] = "call12345"
        answer = {"role": "tool", "name": "weather", "tool_call_id": "call12345", "content": "rain"}
        messages = parse_messages([ASK, message, answer], "messages")
        try:
            text = renderer._write([TOOL], messages, False)
        except Exception as error:  # noqa: BLE001
            texts.append(str(error))
            continue
        assert '\\"city' not in text and "{{" not in text.partition("weather")[2] and "{'city'" not in text
        texts.append(text)
    if "Zürich" in texts[1]:
        assert (
            json.loads(json.dumps(texts[0])) == texts[0] and texts[0].count("Zürich") == texts[1].count("Zürich") == 1
        )
