import json
import random
from pathlib import Path
from typing import Any

import pytest

from shoestring.base.errors import DataError
from shoestring_recipes.finetune.data import read_parts, split
from shoestring_recipes.finetune.rows import Completion, Conversation, Pair, Row, RowParts, Text
from shoestring_recipes.rows import OnBadRows


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(
    path: Path,
    *,
    columns: str | None = None,
    method: str = "sft",
    on_bad_rows: OnBadRows = "refuse",
    validation: float = 0.1,
    seed: int = 0,
) -> RowParts:
    return read_parts(path, columns=columns, method=method, on_bad_rows=on_bad_rows, validation=validation, seed=seed)


def words(number: int, count: int = 40) -> str:
    chosen = random.Random(number)
    return " ".join(f"w{chosen.randrange(1000)}" for _ in range(count))


def chat(question: str, *rest: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    contents = (question, *rest)
    return {"messages": [{"role": roles[number % 2], "content": text} for number, text in enumerate(contents)]}


def prompts(rows: Any) -> set[str]:
    return {row.prompt.casefold() for row in rows}


def test_files_of_several_formats_are_read_together(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", [{"text": "a"}, {"text": "b"}])
    (tmp_path / "train-2.csv").write_text("prompt,completion\nc,d\n")
    (tmp_path / "validation.json").write_text('{"data": [{"text": "e"}]}')
    parts = read(tmp_path)
    assert parts.train == [
        Completion(place="train-2.csv, line 2", prompt="c", completion="d"),
        Text(place="train.jsonl, line 1", text="a"),
        Text(place="train.jsonl, line 2", text="b"),
    ]
    assert parts.validation == [Text(place="validation.json, row 1", text="e")]
    assert parts.notes[0] == "3 rows to train on and 1 for validation, from its own files"


def test_csv_with_columns_of_other_names_and_messages_in_cells(tmp_path: Path) -> None:
    messages = chat("a", "b")["messages"]
    cell = json.dumps(messages).replace('"', '""')
    (tmp_path / "a.csv").write_text(f'chat,id\n"{cell}",1\n')
    parts = read(tmp_path / "a.csv", columns="messages:chat")
    assert parts.train == [Conversation(place="a.csv, line 2", messages=tuple(messages))]
    assert "columns that are not used: id (1 row)" in parts.notes


def test_aliases_are_noted(tmp_path: Path) -> None:
    sharegpt = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
    alpaca = {"instruction": "c", "input": "", "output": "d"}
    notes = read(write(tmp_path / "a.jsonl", [sharegpt, alpaca, alpaca]), validation=0).notes
    assert "1 row with conversations, read as messages" in notes
    assert "2 rows with instruction and output, read as prompt and completion" in notes
    assert "columns that are not used" not in str(notes)


def test_columns_that_have_no_effect_are_counted(tmp_path: Path) -> None:
    """Also those that have an effect on rows of other forms."""
    messages = chat("a", "b")["messages"]
    rows = [
        {"messages": messages, "input": "x", "prompt": "y", "history": [["c", "d"]], "id": 1},
        {"messages": messages, "text": "z", "system": "Be brief."},
        {"text": "z", "system": "Be brief.", "tools": [{"name": "f"}]},
        {"instruction": "a", "input": "", "output": "b", "functions": [{"name": "f"}]},
    ]
    notes = read(write(tmp_path / "a.jsonl", rows), validation=0).notes
    assert (
        "columns that are not used: history (1 row), id (1 row), input (1 row), prompt (1 row), system (1 row), "
        "text (1 row), tools (1 row)"
    ) in notes
    assert "1 row with a column system, written as the first message" in notes
    assert "1 row with a column functions, read as tools" in notes


@pytest.mark.parametrize(
    ("rows", "hint"),
    [
        ([{"question": "a", "answer": "b"}], "if your columns have other names: --set columns=prompt:question"),
        ([{"chosen": "a", "rejected": "b", "prompt": "c"}], "--set method=dpo"),
        ([{"text": ""}], "correct these rows as their reasons say; their columns have the right names"),
        ([chat("a", "b", "c")], "correct these rows as their reasons say; their columns have the right names"),
        ([{"question": "a"}, {"text": ""}], "if your columns have other names"),
    ],
)
def test_the_hint_for_bad_rows_is_about_their_reasons(tmp_path: Path, rows: list[dict[str, Any]], hint: str) -> None:
    with pytest.raises(DataError) as caught:
        read(write(tmp_path / "a.jsonl", rows))
    assert hint in str(caught.value.hint)


def test_pairs(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", [{"prompt": "a", "chosen": "b", "rejected": "c"}])
    assert read(file, method="dpo").train == [Pair(place="a.jsonl, line 1", prompt="a", chosen="b", rejected="c")]


def test_skipped_rows_are_counted(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", [{"text": "a"}, {"text": 3}, {"b": 1}, {"text": "d"}])
    parts = read(file, on_bad_rows="skip", validation=0)
    assert [row.place for row in parts.train] == ["a.jsonl, line 1", "a.jsonl, line 4"]
    assert parts.notes[1] == (
        "2 of 4 rows cannot be used and were skipped (on_bad_rows=skip): "
        f"{file}, line 2: text is a number, not a text; "
        f"{file}, line 3: has no column messages, prompt or text; its columns are b"
    )


def test_skipping_all_of_training_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", [{"text": ""}])
    with pytest.raises(DataError, match="nothing is left"):
        read(tmp_path, on_bad_rows="skip")
    write(tmp_path / "val.jsonl", [{"text": "a"}])
    with pytest.raises(DataError, match="no row of the training data is left"):
        read(tmp_path, on_bad_rows="skip")


@pytest.mark.parametrize("share", [0.05, 0.3, 0.9])
@pytest.mark.parametrize("seed", [0, 1])
def test_rows_with_the_same_prompt_are_in_one_part(tmp_path: Path, share: float, seed: int) -> None:
    rows = [
        {"prompt": variant, "completion": str(random.Random(number).random())}
        for number in range(100)
        for variant in (f"Question {number}", f" question   {number}\n", f"QUESTION {number}")[: 1 + number % 3]
    ]
    parts = read(write(tmp_path / "a.jsonl", rows), validation=share, seed=seed)

    def of(part: Any) -> set[str]:
        return {" ".join(row.prompt.casefold().split()) for row in part}

    assert not of(parts.train) & of(parts.validation)
    assert len(of(parts.train) | of(parts.validation)) == 100
    assert len(parts.validation) == round(share * len(rows))


def test_conversations_with_the_same_first_question_are_in_one_part() -> None:
    rows = [
        Conversation(place="", messages=tuple(chat(f"question {number}", f"answer {turn}", "more", "end")["messages"]))
        for number in range(20)
        for turn in range(3)
    ]
    train, validation = split(rows, 0.2, 0)
    first = [
        {row.messages[0]["content"] for row in part if isinstance(row, Conversation)} for part in (train, validation)
    ]
    assert not first[0] & first[1] and len(validation) == 12


def test_a_greeting_of_the_assistant_is_no_answer_to_a_prompt() -> None:
    greeting = {"role": "assistant", "content": "How can I help?"}
    system = {"role": "system", "content": "Be brief."}
    rows = [Conversation(place="", messages=(system, greeting, *chat(name, "b")["messages"])) for name in "cdef"]
    assert [len(part) for part in split(rows, 0.25, 0)] == [3, 1]


def test_a_prompt_is_the_same_in_every_form() -> None:
    question, answer = {"role": "user", "content": "A?"}, {"role": "assistant", "content": "b"}
    same: list[Row] = [
        Completion(place="", prompt="a?", completion="b"),
        Completion(place="", prompt=(question,), completion=(answer,)),
        Conversation(place="", messages=(question, answer)),
        Pair(place="", prompt=(question,), chosen=(answer,), rejected=(question,)),
    ]
    other = Completion(place="", prompt="c?", completion="d")
    train, validation = split([*same, other], 0.2, 0)
    assert (train, validation) == (same, [other])


def test_the_split_depends_on_contents_and_seed_alone(tmp_path: Path) -> None:
    rows = [{"prompt": words(number), "completion": "a"} for number in range(60)]
    first = write(tmp_path / "first" / "a.jsonl", rows).parent
    second = write(tmp_path / "second" / "a.jsonl", rows[40:][::-1]).parent
    write(second / "b.jsonl", rows[:40])
    expected = prompts(read(first).validation)
    assert len(expected) == 6
    assert prompts(read(second).validation) == expected
    assert prompts(read(first, seed=1).validation) != expected


def test_the_order_of_the_files_is_kept_in_both_parts(tmp_path: Path) -> None:
    parts = read(write(tmp_path / "a.jsonl", [{"text": words(number)} for number in range(50)]))
    for part in (parts.train, parts.validation):
        lines = [int(row.place.rpartition(" ")[2]) for row in part]
        assert lines == sorted(lines)


@pytest.mark.parametrize(
    ("sizes", "share", "expected"),
    [
        ([1, 1], 0.01, 1),
        ([1, 1], 0.99, 1),
        ([1] * 10, 0, 0),
        ([10], 0.5, 0),
        ([1], 0.5, 0),
        ([6, 4], 0.01, 4),
        ([20, 3, 3, 3, 1], 0.1, 3),
        ([20, 5, 5], 0.1, 5),
        ([96, 4], 0.3, 4),
        ([3] * 9, 0.2, 6),
    ],
)
def test_the_number_of_validation_rows_is_near_the_share(sizes: list[int], share: float, expected: int) -> None:
    rows = [Text(place="", text=f"group {group}") for group, size in enumerate(sizes) for _ in range(size)]
    train, validation = split(rows, share, 0)
    assert (len(train), len(validation)) == (len(rows) - expected, expected)


def test_no_validation_is_noted(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", [{"text": "a"}] * 3)
    assert read(file).notes == (
        "3 rows to train on and 0 for validation, as all rows have the same prompt: add a file validation.jsonl",
        "rows that repeat another one, apart from case and white space: 2",
    )
    assert read(file, validation=0).notes[0] == "3 rows to train on and 0 for validation"


def test_near_duplicates_between_the_parts_are_counted(tmp_path: Path) -> None:
    system = {"role": "system", "content": words(1000, 2000)}
    rows = [{"messages": [system, *chat(words(number), words(number + 100))["messages"]]} for number in range(30)]
    near = json.loads(json.dumps(rows[:3]).replace(rows[0]["messages"][1]["content"][:10], "Something else"))
    write(tmp_path / "train.jsonl", rows)
    far = [{"messages": [system, *chat(words(number), "a")["messages"]]} for number in range(500, 505)]
    write(tmp_path / "val.jsonl", [*near, *far])
    assert read(tmp_path).notes[-1] == (
        "validation rows that nearly repeat a training row: 3 of 8 (Jaccard similarity of their sequences of 5 words "
        "at least 0.8)"
    )
