"""Marks that switch learning off: every spelling, for whole answers and for parts of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from shoestring.base.errors import DataError
from shoestring_recipes.finetune.data import read_parts
from shoestring_recipes.finetune.messages import parse_messages
from shoestring_recipes.finetune.rendering import Renderer
from shoestring_recipes.finetune.rows import Completion, Conversation
from tests.recipes.finetune.test_rendering import learned_texts
from tests.recipes.finetune.tokenizers import CHATML, CHATML_MARKED, make_tokenizer

ASK = {"role": "user", "content": "What is two plus two?"}
WRONG = {"role": "assistant", "content": "It is five."}
MORE = {"role": "user", "content": "Hello, hello!"}
RIGHT = {"role": "assistant", "content": "It is four."}
OFF = [{"weight": 0}, {"weight": 0.0}, {"train": False}, {"loss": False}, {"loss_mask": 0}]
ON = [{"weight": 1}, {"weight": 1.0}, {"train": True}, {"loss": True}, {"loss_mask": 1}, {"weight": None}]


def learn(*messages: dict[str, Any], template: str = CHATML, **arguments: Any) -> list[str]:
    renderer = Renderer(make_tokenizer(template), **{"seq_len": 4096, **arguments})
    row = Conversation(place="", messages=parse_messages(list(messages), "messages"))
    return learned_texts(renderer, renderer.render(row))


@pytest.mark.parametrize("template", [CHATML, CHATML_MARKED])
@pytest.mark.parametrize("mark", OFF)
def test_an_answer_that_is_switched_off_is_not_learned(template: str, mark: dict[str, Any]) -> None:
    assert learn(ASK, {**WRONG, **mark}, MORE, RIGHT, template=template) == ["It is four.<|im_end|>"]
    assert learn(ASK, RIGHT, MORE, {**WRONG, **mark}, template=template) == ["It is four.<|im_end|>"]
    assert learn(ASK, {**WRONG, **mark}, template=template) == []
    assert learn(ASK, RIGHT, MORE, {**WRONG, **mark}, template=template, train_on="completion") == []


@pytest.mark.parametrize("template", [CHATML, CHATML_MARKED])
@pytest.mark.parametrize("mark", ON)
def test_other_answers_are_learned(template: str, mark: dict[str, Any]) -> None:
    assert len(learn(ASK, {**WRONG, **mark}, MORE, RIGHT, template=template)) == 2


def test_all_tokens_but_those_of_the_answer_are_learned() -> None:
    first, second = learn(ASK, {**WRONG, "weight": 0}, MORE, RIGHT, train_on="all")
    assert first.endswith("assistant\n") and second.startswith("\n<|im_start|>user") and "It is five" not in first


def test_the_template_does_not_receive_marks() -> None:
    template = CHATML.replace("{{ message['content'] }}", "{{ message['content'] }}{{ message.weight is defined }}")
    assert learn(ASK, {**RIGHT, "weight": 1}, template=template) == ["It is four.False<|im_end|>"]


@pytest.mark.parametrize("template", [CHATML, CHATML_MARKED])
def test_parts_of_an_answer_are_learned(template: str) -> None:
    """A token that is partly learned is: the space before `four` belongs to its token."""
    parts = [{"begin_offset": 0, "end_offset": 5, "train": False}, {"begin_offset": 6, "end_offset": 10, "train": True}]
    answer = {**RIGHT, "train_detail": parts}
    assert learn(ASK, answer, MORE, RIGHT, template=template) == [" four.<|im_end|>", "It is four.<|im_end|>"]
    none = [{**part, "train": False} for part in parts]
    assert learn(ASK, {**RIGHT, "train_detail": none}, MORE, RIGHT, template=template) == ["It is four.<|im_end|>"]


def test_parts_of_a_content_that_the_template_changes_are_refused() -> None:
    parts = [{"begin_offset": 0, "end_offset": 3, "train": True}]
    template = CHATML.replace("{{ message['content'] }}", "{{ message['content'] | trim }}")
    with pytest.raises(DataError) as caught:
        learn(ASK, {"role": "assistant", "content": "  It is four.", "train_detail": parts}, template=template)
    assert "the template changes the content" in caught.value.problems[0]


@pytest.mark.parametrize(
    ("mark", "reason"),
    [
        ({"weight": 0.5}, "weight is 0.5; only 0 (not learned) and 1 (learned) can be used, because tools weigh by "
         "other numbers in different ways"),
        ({"weight": -1}, "weight is -1; only 0"),
        ({"weight": "0"}, "weight is a text, not 0 (not learned) or 1 (learned)"),
        ({"loss": [1]}, "loss is a list, not 0"),
        ({"weight": 1, "train": False}, "its marks contradict each other: weight 1 and train false"),
        ({"train_detail": {}}, "train_detail is an object, not a list"),
        ({"train_detail": [{"begin_offset": 0, "end_offset": 3}]}, "train_detail has a part without begin_offset, "
         "end_offset and train"),
        ({"train_detail": [{"begin_offset": "0", "end_offset": 3, "train": True}]}, "train_detail has a part whose "
         "begin_offset or end_offset is no whole number"),
        ({"train_detail": [{"begin_offset": 0, "end_offset": 11, "train": True}]}, "train_detail has a part from 0 to "
         "11, but the content has 11 characters"),
    ],
)  # fmt: skip
def test_marks_that_cannot_be_followed_are_refused(mark: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match="message 2 of messages") as caught:
        parse_messages([ASK, {**RIGHT, **mark}], "messages")
    assert reason in str(caught.value)


def read(path: Path, rows: list[dict[str, Any]], **options: Any) -> Any:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    defaults = {"columns": None, "method": "sft", "on_bad_rows": "refuse", "validation": 0, "seed": 0}
    return read_parts(path, **{**defaults, **options})


def test_rows_with_the_weight_0_are_left_out(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "completion": "b", "weight": weight} for weight in (0, 1, 0.0, True, None)]
    parts = read(tmp_path / "a.jsonl", rows)
    assert [row.place for row in parts.train] == ["a.jsonl, line 2", "a.jsonl, line 4", "a.jsonl, line 5"]
    assert "2 rows with the weight 0, left out of training and validation" in parts.notes
    (tmp_path / "a.csv").write_text("text,weight\na,0\nb,1.0\n")
    cells = read_parts(tmp_path / "a.csv", columns=None, method="sft", on_bad_rows="refuse", validation=0, seed=0)
    assert [row.place for row in cells.train] == ["a.csv, line 3"]
    with pytest.raises(DataError, match="no row of the training data is left: 1 row with weight 0"):
        read(tmp_path / "a.jsonl", rows[:1])
    with pytest.raises(DataError) as caught:
        read(tmp_path / "a.jsonl", [{"text": "a", "weight": 2.5}])
    assert "weight is 2.5; only 0" in caught.value.problems[0]
    other = read(tmp_path / "a.jsonl", [{"text": "a", "weight": 2.5, "share": 1}], columns="weight:share")
    assert "columns that are not used: weight (1 row)" in other.notes


@pytest.mark.parametrize("column", ["label", "kto_tag"])
def test_answers_that_are_not_wanted_are_refused(tmp_path: Path, column: str) -> None:
    rows = [{"prompt": "a", "completion": "b", column: wanted} for wanted in (True, False)]
    with pytest.raises(DataError, match="1 of 2 rows cannot be used") as caught:
        read(tmp_path / "a.jsonl", rows)
    assert f"{column} is false, which marks an answer that is not wanted (data for KTO)" in caught.value.problems[0]
    assert len(read(tmp_path / "a.jsonl", rows, on_bad_rows="skip").train) == 1
    classes = read(tmp_path / "a.jsonl", [{**rows[0], column: 3}])
    assert f"columns that are not used: {column} (1 row)" in classes.notes


def test_the_reasons_of_what_is_not_learned() -> None:
    renderer = Renderer(make_tokenizer(), seq_len=4096)
    greeting = {"role": "assistant", "content": "Hello"}
    messages = (greeting, ASK, {**WRONG, "weight": 0}, MORE, RIGHT)
    (reasons,) = renderer.reasons(Conversation(place="", messages=messages))
    sample = renderer.render(Conversation(place="", messages=messages))
    texts = [(renderer.decode(sample.tokens[first:end], skip_special=False), why) for first, end, why in reasons]
    assert texts == [
        ("<|im_start|>assistant\nHello<|im_end|>", "message 1: no prompt precedes it"),
        ("It is five.<|im_end|>", "message 3: weight 0"),
    ]
    last = Renderer(make_tokenizer(), seq_len=4096, train_on="completion")
    (reasons,) = last.reasons(Conversation(place="", messages=(ASK, WRONG, MORE, RIGHT)))
    assert [why for *_, why in reasons] == ["message 2: train_on=completion learns the last answer alone"]
    (reasons,) = renderer.reasons(Completion(place="", prompt=(ASK, WRONG, MORE), completion=(RIGHT,)))
    assert [why for *_, why in reasons] == ["message 2: it is in the prompt"]
