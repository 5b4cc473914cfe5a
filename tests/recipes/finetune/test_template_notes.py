"""What a chat template leaves out or needs changed is noted once, with its number."""

from shoestring_recipes.finetune.rendering import Renderer
from shoestring_recipes.finetune.rows import Completion, Conversation, Message, Pair, Text
from shoestring_recipes.finetune.template_notes import template_notes
from tests.recipes.finetune.tokenizers import CHATML, make_tokenizer

ASK = {"role": "user", "content": "What is two plus two?"}
ANSWER = {"role": "assistant", "content": "It is four."}
TOOL = {"type": "function", "function": {"name": "f"}}


def chat(*messages: Message, tools: tuple[Message, ...] | None = None) -> Conversation:
    return Conversation(place="", messages=messages, tools=tools)


def test_keys_and_parts_that_are_not_used_are_counted() -> None:
    rows = [chat(ASK, {**ANSWER, "reasoning_content": "hm", "score": 3}, tools=(TOOL,)) for _ in range(20)]
    rows += [chat({**ASK, "name": "Ann"}, {**ANSWER, "score": None})]
    pairs = [Pair(place="", prompt=(ASK,), chosen=({**ANSWER, "score": 1},), rejected=(ANSWER,))]
    others = [Text(place="", text="a"), Completion(place="", prompt="a", completion="b")]
    renderer = Renderer(make_tokenizer(), seq_len=100)
    assert list(template_notes([*rows, *pairs, *others], renderer)) == [
        "keys of messages that the chat template does not use, with the number of messages: name (1), "
        "reasoning_content (20), score (21)",
        "the chat template leaves out: tools (20)",
    ]


def test_what_is_used_is_not_noted() -> None:
    template = CHATML.replace(
        "{{ message['content'] }}", "{{ message.get('name', '') }}{{ message['content'] }}{{ tools or '' }}"
    )
    renderer = Renderer(make_tokenizer(template), seq_len=100)
    assert list(template_notes([chat({**ASK, "name": "Ann"}, ANSWER, tools=(TOOL,))], renderer)) == []


def test_messages_that_are_left_out_are_counted() -> None:
    written = "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    template = CHATML.replace(written, "{% if message.role != 'system' %}" + written + "{% endif %}")
    renderer = Renderer(make_tokenizer(template), seq_len=100)
    row = chat({"role": "system", "content": "Be brief."}, ASK, ANSWER)
    assert list(template_notes([row, row], renderer)) == ["the chat template leaves out: messages of the system (2)"]


def test_marks_are_counted() -> None:
    rows = [chat(ASK, {**ANSWER, "weight": 0}, ASK, ANSWER)] * 3
    rows += [chat({**ASK, "train": True}, {**ANSWER, "train": True}), chat({**ASK, "weight": 0}, ANSWER)]
    rows += [chat(ASK, {**ANSWER, "train_detail": [{"begin_offset": 0, "end_offset": 3, "train": True}]})]
    assert list(template_notes(rows, Renderer(make_tokenizer(), seq_len=100))) == [
        "3 conversations with answers that are not learned: weight 0",
        "1 conversation with answers that are not learned: parts that train_detail excludes",
        "1 message of others than the assistant with train: not learned, as answers alone are",
    ]
