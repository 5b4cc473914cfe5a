"""Prompts of each format of files, and the model's answers to them."""

import csv
import json

import pyarrow
import pyarrow.parquet
import pytest
import torch

from shoestring.base.errors import DataError, UsageError
from shoestring.techniques.loss import IGNORED
from shoestring_recipes.finetune.prediction import (
    HELD_OUT,
    Prompt,
    answer_questions,
    collate_prompts,
    held_out_questions,
    predict,
    read_inputs,
    read_prompts,
    read_questions,
    split_answers,
    targets,
)
from shoestring_recipes.finetune.questions import Question, parse_question
from shoestring_recipes.finetune.rows import Conversation
from tests.recipes.finetune.letters import ASSISTANT, STOP, USER, Letters
from tests.recipes.finetune.tiny_models import llama

ROWS = [
    {"id": "first", "messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}]},
    {"messages": [{"role": "user", "content": "d"}]},
]
EXPECTED = [
    ("first", [{"role": "user", "content": "ab"}], Prompt([USER, 10, 11, STOP, ASSISTANT], "c")),
    (None, [{"role": "user", "content": "d"}], Prompt([USER, 13, STOP, ASSISTANT])),
]


def read(source, **arguments):
    return [
        (item.id, item.value, item.load() if item.load else item.error)
        for item in read_inputs(source, Letters(), **arguments)
    ]


def write(path, rows):
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["id", "messages"])
            writer.writeheader()
            writer.writerows({**row, "messages": json.dumps(row["messages"])} for row in rows)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(f"{json.dumps(row)}\n\n" for row in rows))
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".ndjson", ".json", ".csv", ".parquet"])
def test_rows_of_each_format(suffix, tmp_path):
    assert read(write(tmp_path / f"rows{suffix}", ROWS)) == EXPECTED


def test_rows_of_a_list_and_a_folder(tmp_path):
    assert read(ROWS) == EXPECTED
    write(tmp_path / "b.csv", ROWS[:1])
    write(tmp_path / "a.jsonl", ROWS[1:])
    (tmp_path / "readme.txt").touch()
    assert read(tmp_path) == EXPECTED[::-1]


def test_other_names_of_columns():
    row = {"chat": ROWS[0]["messages"], "question": "ab"}
    assert read([row], columns={"messages": "chat"})[0][2] == EXPECTED[0][2]
    assert read([row], columns={"prompt": "question"})[0][1:] == ("ab", Prompt([10, 11]))


def test_rows_that_cannot_be_used_have_an_error(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a"}\n{"text"\n3\n{"id": 7, "prompt": ""}\n{"text": "abc"}\n')
    (_, _, first), *failed = [(item.id, item.value, item.error) for item in read_inputs(file, Letters(), longest=2)]
    assert first is None
    assert failed[0][2].startswith("is not valid JSON") and failed[1][2].startswith("is a number, not an object")
    assert failed[2] == (7, None, "its prompt is empty")
    *_, last = read_inputs(file, Letters(), longest=2)
    with pytest.raises(ValueError, match="its prompt has 3 tokens, more than 2"):
        last.load()
    table = tmp_path / "rows.csv"
    table.write_text("text\na,b\nc\n")
    assert [item.error for item in read_inputs(table, Letters())] == ["has 2 cells, but the header has 1", None]


def test_files_that_cannot_be_read(tmp_path):
    broken = {
        "missing.jsonl": None,
        "object.json": b"{}",
        "half.json": b"[",
        "quote.csv": b'text\n"a',
        "no.parquet": b"PAR1",
    }
    for name, content in broken.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match=f"{name} cannot be read"):
            list(read_inputs(tmp_path / name, Letters()))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="has no rows that can be read"):
        list(read_inputs(tmp_path / "empty", Letters()))


class Canned:
    """In place of `generate`: what it is called with, and the answers that it returns."""

    def __init__(self, *answers):
        self.answers, self.prompts = list(answers), []

    def __call__(self, model, prompts, *, stop_tokens, max_tokens, pad):
        assert (stop_tokens, max_tokens, pad) == ({STOP}, 4, 0)
        self.prompts.append(prompts)
        return [self.answers.pop(0) for _ in prompts]


def test_predictions(monkeypatch):
    canned = Canned([10, 11, STOP], [10, 11, 12, 13], [STOP])
    monkeypatch.setattr("shoestring_recipes.finetune.prediction.generate", canned)
    batch = collate_prompts([Prompt([5], "x"), Prompt([6, 7]), Prompt([8])])
    assert predict(None, batch, Letters(), max_tokens=4, pad=0) == [
        {"prediction": "ab", "tokens": 2, "stopped": True},
        {"prediction": "abcd", "tokens": 4, "stopped": False},
        {"prediction": "", "tokens": 0, "stopped": True},
    ]
    assert canned.prompts == [[[5], [6, 7], [8]]] and targets(batch) == ["x", None, None]


def test_answers_to_held_out_prompts(monkeypatch):
    canned = Canned([10, STOP], [11, 11, 11, 11], [12, STOP])
    monkeypatch.setattr("shoestring_recipes.finetune.prediction.generate", canned)
    questions = [*map(parse_question, ROWS), Question(prompt="e")]
    rows = list(answer_questions(None, questions, Letters(), max_tokens=4, pad=0, size=2))
    assert rows == [
        {"prompt": "ab", "answer": "a", "reference": "c", "stopped": True},
        {"prompt": "d", "answer": "bbbb", "reference": None, "stopped": False},
        {"prompt": "e", "answer": "c", "reference": None, "stopped": True},
    ]
    assert [len(prompts) for prompts in canned.prompts] == [2, 1]


def test_answer_of_a_real_model():
    (row,) = predict(llama().eval(), collate_prompts([Prompt([5, 6])]), Letters(), max_tokens=4, pad=0)
    assert row["tokens"] == len(row["prediction"]) and row["stopped"] == (row["tokens"] < 4)


def test_last_answer_of_a_sample_is_its_target():
    tokens = torch.tensor([[3, 10, 2, 4, 11, 12, 2, 0], [10, 11, 12, 0, 0, 0, 0, 0], [3, 4, 10, 2, 3, 4, 13, 2]])
    loss_mask = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 0], [0, 1, 1, 0, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0, 1, 1]]).bool()
    batch = split_answers(tokens, tokens.where(loss_mask, IGNORED), Letters())
    assert batch["prompts"] == [[3, 10, 2, 4], [10], [3, 4, 10, 2, 3, 4]]
    assert targets(batch) == ["bc", "bc", "d"]


def test_questions_of_validation_rows():
    user, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    without = Conversation(place="f, line 1", messages=(answer,))
    rows = [without, *(Conversation(place=f"f, line {n}", messages=(user, answer)) for n in range(2, 12))]
    first, second, *_ = read_questions(rows, Letters())
    assert (first.id, first.error) == ("f, line 1", "has no message before the answer")
    assert (second.id, second.load()) == ("f, line 2", Prompt([USER, 10, STOP, ASSISTANT], "b"))
    assert held_out_questions(rows) == [Question(prompt=(user,), target="b")] * HELD_OUT


def test_file_of_prompts(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a"}\n{"messages": [{"role": "user", "content": "b"}]}\n')
    assert [question.text() for question in read_prompts(file)] == ["a", "b"]
    file.write_text('{"prompt": "a"}\n{"prompt": ""}\n{\n')
    with pytest.raises(DataError, match="2 rows cannot be used") as error:
        read_prompts(file)
    assert error.value.problems[0] == f"{file}, row 2: its prompt is empty"
    file.write_text("")
    with pytest.raises(DataError, match="has no rows"):
        read_prompts(file)
