"""Each broken file gives one error that names the file, the line or row, and the reason."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from shoestring.base.errors import DataError, UsageError
from shoestring.base.reading import LINE_BYTES
from shoestring_recipes.finetune.data import read_parts

GOOD = '{"text": "good"}\n'
ASK = {"role": "user", "content": "Hi?"}
ANSWER = {"role": "assistant", "content": "Hello."}


def fail(path: Path, method: str = "sft", columns: str | None = None) -> UsageError:
    with pytest.raises(UsageError) as refused:
        read_parts(path, columns=columns, method=method, on_bad_rows="refuse", validation=0.05, seed=0)
    return refused.value


def chat(*messages: object) -> dict[str, object]:
    return {"messages": list(messages)}


ROWS: list[tuple[str, Any, str]] = [
    ("sft", "text", "is a text, not an object with columns"),
    ("sft", [], "is a list, not an object with columns"),
    ("sft", {}, "has no columns"),
    ("sft", {"a": 1, "b": 2}, "has no column messages, prompt or text; its columns are a, b"),
    ("sft", {"text": None}, "has no column messages, prompt or text; its columns are text"),
    ("sft", {"messages": "Hi"}, "messages is a text, not a list of messages"),
    ("sft", {"messages": 3}, "messages is a number, not a list of messages"),
    ("sft", {"messages": {}}, "messages is an object, not a list of messages"),
    ("sft", {"messages": []}, "messages is an empty list"),
    ("sft", chat("Hi"), "message 1 of messages is a text, not an object with role and content"),
    ("sft", chat({"content": "Hi?"}), "message 1 of messages has no role"),
    ("sft", chat({**ASK, "role": "asistant"}), "message 1 of messages has the unknown role 'asistant'; did you mean "
     "assistant?"),
    ("sft", chat({**ASK, "role": 3}), "message 1 of messages has the unknown role '3'; available: system, developer, "
     "user, assistant, tool"),
    ("sft", chat({"role": "user"}), "message 1 of messages (user) has no content"),
    ("sft", chat(ASK, {**ANSWER, "content": None}), "message 2 of messages (assistant) has no content"),
    ("sft", chat(ASK, {**ANSWER, "content": 3}), "message 2 of messages (assistant): its content is a number, not a "
     "text"),
    ("sft", chat(ASK, {**ANSWER, "content": " \n"}), "message 2 of messages (assistant) is empty"),
    ("sft", chat({**ANSWER, "content": ""}), "message 1 of messages (assistant) is empty"),
    ("sft", chat({**ASK, "content": ""}, ANSWER), "message 1 of messages (user) is empty"),
    ("sft", chat({**ASK, "content": [{"type": "image", "image": "a.png"}]}), "message 1 of messages (user): its "
     "content has a part of the type 'image'; only texts can be used"),
    ("sft", chat({**ASK, "content": ["Hi?"]}), "message 1 of messages (user): its content has a part of the type "
     "'a text'; only texts can be used"),
    ("sft", chat({**ASK, "content": [{"type": "text"}]}), "message 1 of messages (user): its content has a part "
     "without a text"),
    ("sft", chat(ASK), "messages has no message of the assistant"),
    ("sft", chat(ASK, ANSWER, {"role": "system", "content": "a"}), "message 3 has the role system, which only the "
     "first one may have"),
    ("sft", chat(ASK, {**ANSWER, "content": "a\0b"}), "message 2 of messages (assistant) contains a NUL character, "
     "which no text has"),
    ("sft", chat(ASK, {**ANSWER, "content": "a\ud800b"}), "cannot be read: the text 'a\\ud800b' contains half a "
     "character"),
    ("sft", chat(ASK, {**ANSWER, "tool_calls": "f"}), "message 2 of messages (assistant): tool_calls is a text, not a "
     "list"),
    ("sft", chat(ASK, {"role": "assistant", "tool_calls": []}), "message 2 of messages (assistant) has no content"),
    ("sft", chat(ASK, {**ANSWER, "tool_calls": [{"id": 1}]}), "message 2 of messages (assistant): tool_calls has an "
     "entry without the name of a function"),
    ("sft", {"conversations": [{"from": "bot", "value": "Hi"}]}, "message 1 of conversations has the unknown role "
     "'bot'; available: system, developer, user, assistant, tool"),
    ("sft", {**chat(ASK, ANSWER), "tools": "[{"}, "tools is a text that is not valid JSON: Expecting property name "
     "enclosed in double quotes: line 1 column 3 (char 2)"),
    ("sft", {**chat(ASK, ANSWER), "tools": ["f"]}, "tools is not a list of objects"),
    ("sft", {"prompt": "Hi?"}, "has no completion"),
    ("sft", {"completion": "Hello."}, "has no prompt"),
    ("sft", {"prompt": "Hi?", "completion": " "}, "completion is empty"),
    ("sft", {"prompt": "", "completion": "Hello."}, "prompt is empty"),
    ("sft", {"prompt": "Hi?", "completion": 3}, "completion is a number, not a text or a list of messages"),
    ("sft", {"prompt": "Hi?", "completion": [ANSWER]}, "prompt is a text, but completion is a list of messages"),
    ("sft", {"prompt": [ASK], "completion": [ASK]}, "the answer in completion begins with a message of the role user"),
    ("sft", {"prompt": [ASK], "completion": [{"role": "tool", "content": "a"}]}, "completion has no message of the "
     "assistant"),
    ("sft", {"instruction": "Add"}, "has no output"),
    ("sft", {"instruction": "Add", "output": ["3"]}, "output is a list, not a text"),
    ("sft", {"instruction": "Add", "input": 3, "output": "3"}, "input is a number, not a text"),
    ("sft", {"text": "\n"}, "text is empty"),
    ("sft", {"text": 3}, "text is a number, not a text"),
    ("sft", {"text": "a\0"}, "text contains a NUL character, which no text has"),
    ("sft", {"text": True}, "text is true or false, not a text"),
    ("sft", {"prompt": "Hi?", "chosen": "a", "rejected": "b"}, "has the columns of method=dpo, but for method=sft no "
     "column messages, prompt or text"),
    ("dpo", chat(ASK, ANSWER), "has the columns of method=sft, but for method=dpo no column chosen or rejected"),
    ("dpo", {"conversations": [ASK], "chosen": "a"}, "has the columns of method=sft, but for method=dpo no column "
     "chosen or rejected"),
    ("dpo", {"prompt": "Hi?", "chosen": "a"}, "has no rejected"),
    ("dpo", {"a": 1}, "has no column chosen or rejected; its columns are a"),
    ("dpo", {"prompt": "Hi?", "chosen": "a", "rejected": "a"}, "chosen and rejected are equal"),
    ("dpo", {"prompt": "Hi?", "chosen": "a", "rejected": ""}, "rejected is empty"),
    ("dpo", {"prompt": "Hi?", "chosen": "a", "rejected": [ANSWER]}, "chosen is a text, but rejected is a list of "
     "messages"),
    ("dpo", {"prompt": "Hi?", "chosen": {"role": "a"}, "rejected": "b"}, "chosen is an object, not a text or a list of "
     "messages"),
    ("dpo", {"chosen": "a", "rejected": "b"}, "has no prompt, and chosen and rejected are no conversations"),
    ("dpo", {"prompt": "Hi?", "chosen": [ANSWER], "rejected": [{**ANSWER, "content": "Go."}]}, "prompt is a text, but "
     "chosen is a list of messages"),
    ("dpo", {"chosen": [ANSWER], "rejected": [ASK]}, "chosen and rejected do not begin with the same message, which "
     "would be the prompt"),
    ("dpo", {"prompt": "Hi?", "chosen": [ASK, ANSWER], "rejected": [ANSWER]}, "chosen and rejected do not begin with "
     "the same message, which would be the prompt"),
    ("dpo", {"chosen": [ASK, ANSWER], "rejected": [ASK]}, "rejected has no answer after the messages with which both "
     "begin"),
    ("dpo", {"chosen": [ASK, ASK, ANSWER], "rejected": [ASK, ANSWER]}, "the answer in chosen begins with a message of "
     "the role user"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "row", "reason"), ROWS, ids=range(len(ROWS)))
def test_a_bad_row_is_reported_with_its_line(tmp_path: Path, method: str, row: Any, reason: str) -> None:
    good = {"prompt": "Hi?", "chosen": "a", "rejected": "b"} if method == "dpo" else {"text": "good"}
    file = tmp_path / "a.jsonl"
    file.write_text(f"{json.dumps(good)}\n{json.dumps(row)}\n{json.dumps(good)}\n")
    error = fail(file, method)
    assert error.message == "1 of 3 rows cannot be used"
    assert error.problems == (f"{file}, line 2: {reason}",)
    assert type(error) is DataError and "on_bad_rows=skip" in str(error.hint)


LINES: list[tuple[str, bytes, str]] = [
    ("truncated", b'{"text": "a', "is not valid JSON: Unterminated string starting at character 10"),
    ("no_json", b"Once upon a time", "is not valid JSON: Expecting value at character 1"),
    ("two_values", b'{"text": "a"} {"text": "b"}', "is not valid JSON: Extra data at character 15"),
    ("key_twice", b'{"text": "a", "text": "b"}', "cannot be read: a key occurs twice"),
    ("nan", b'{"text": "a", "score": NaN}', "cannot be read: NaN is not valid JSON"),
    ("huge_number", b'{"text": "a", "score": 1e999}', "cannot be read: the number 1e999 is too large"),
    ("half_character", b'{"text": "a\\udc00"}', "cannot be read: the text 'a\\udc00' contains half a character"),
    ("latin1", '{"text": "café"}'.encode("latin-1"), "is not UTF-8: invalid continuation byte at byte 14"),
    ("deep", b'{"text": ' + b"[" * 200 + b"]" * 200 + b"}", "cannot be read: it is nested too deeply"),
    ("very_deep", b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "cannot be read: it is nested too deeply"),
    ("long", b'{"text": "' + b"a" * LINE_BYTES + b'"}', "has more than 4.00 MiB"),
]


@pytest.mark.parametrize(("line", "reason"), [case[1:] for case in LINES], ids=[case[0] for case in LINES])
def test_a_bad_line_is_reported(tmp_path: Path, line: bytes, reason: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(GOOD.encode() + line + b"\n" + GOOD.encode())
    assert fail(file).problems == (f"{file}, line 2: {reason}",)


def test_rows_of_lists_csv_and_parquet_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"text": "a"}, {"text": 3}]')
    (tmp_path / "b.csv").write_text("messages\na\n\n[]\n")
    table = pyarrow.table({"chat": ["a"], "score": [1.0]})
    pyarrow.parquet.write_table(table, tmp_path / "c.parquet")
    error = fail(tmp_path)
    assert error.message == "4 of 5 rows cannot be used"
    assert error.problems == (
        f"{tmp_path}/a.json, row 2: text is a number, not a text",
        f"{tmp_path}/b.csv, line 2: messages is a text that is not valid JSON: Expecting value: line 1 column 1 "
        "(char 0)",
        f"{tmp_path}/b.csv, line 4: messages is an empty list",
        f"{tmp_path}/c.parquet, row 1: has no column messages, prompt or text; its columns are chat, score",
    )


FILES: list[tuple[str, bytes, str]] = [
    ("empty.jsonl", b"", "has no rows"),
    ("blank.jsonl", b"\n \n", "has no rows"),
    ("empty.json", b" ", "has no rows"),
    ("empty_list.json", b"[]", "has no rows"),
    ("empty.csv", b"", "has no rows"),
    ("header_only.csv", b"prompt,completion\n", "has no rows"),
    ("empty.parquet", b"", "cannot be read: Parquet file size is 0 bytes"),
    ("utf16.jsonl", GOOD.encode("utf-16"), "cannot be read: it is text in UTF-16, not in UTF-8"),
    ("utf16_without_mark.csv", "text\na\n".encode("utf-16-le"), "cannot be read: it contains NUL characters, so it is "
     "no text in UTF-8"),
    ("gzip.jsonl", gzip.compress(GOOD.encode()), "cannot be read: it is compressed with gzip"),
    ("zip.json", b"PK\x03\x04abc", "cannot be read: it is a ZIP archive"),
    ("parquet.jsonl", b"PAR1abc", "cannot be read: it is a Parquet file under another name"),
    ("binary.jsonl", bytes(range(256)), "cannot be read: it contains NUL characters, so it is no text in UTF-8"),
    ("truncated.json", b'[{"text": "a"},\n {"text"', "cannot be read: Expecting ':' delimiter in line 2, character 9"),
    ("key_twice.json", b'[{"text": "a", "text": "b"}]', "cannot be read: a key occurs twice"),
    ("latin1.json", '[\n{"text": "é"}]'.encode("latin-1"), "cannot be read: line 2 is not UTF-8: invalid continuation "
     "byte"),
    ("list_twice.json", b"[] []", "cannot be read: Extra data in line 1, character 4"),
    ("number.json", b"3", "cannot be read: it is a number, not a list of rows"),
    ("two_lists.json", b'{"a": [], "b": []}', "cannot be read: it is an object, but neither a row nor one list of rows "
     "under a name"),
    ("open_quote.csv", b'text\na\n"b\nc\n', "cannot be read: the row that begins in line 3 cannot be divided into "
     "cells: a quote is never closed"),
    ("truncated_text.json", b'[\n{"text": "a', "cannot be read: Unterminated string starting in line 2, character 10"),
    ("quote_inside.csv", b'text\n"say "a" b"\n', "cannot be read: the row that begins in line 2 cannot be divided into "
     "cells: ',' expected after '\"'; a quote inside a cell is written twice"),
    ("long_cell.csv", b'text\n"' + b"a\n" * LINE_BYTES, "cannot be read: the row that begins in line 2 cannot be "
     "divided into cells: a quote is never closed"),
    ("repeated.csv", b"text,text\na,b\n", "cannot be read: it has two columns of the name 'text'"),
    ("latin1_header.csv", b"t\xe9xt\na\n", "cannot be read: its header, line 1, is not UTF-8"),
    ("no.parquet", b"Once upon a time", "cannot be read: Parquet magic bytes not found in footer. Either the file is "
     "corrupted or this is not a parquet file."),
    ("text.txt", b"Once upon a time", "cannot be read: its ending is unknown"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "reason"), FILES, ids=[case[0] for case in FILES])
def test_a_broken_file_is_reported(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(content)
    error = fail(tmp_path / name)
    assert type(error) is DataError
    assert (error.message, error.problems) == (f"{tmp_path / name} {reason}", ())
    assert error.hint


@pytest.mark.parametrize(("kept", "reason"), [(-20, "magic bytes not found"), (0.5, "magic bytes not found")])
def test_a_truncated_parquet_file_is_reported(tmp_path: Path, kept: float, reason: str) -> None:
    file = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": [str(number) for number in range(1000)]}), file)
    content = file.read_bytes()
    file.write_bytes(content[: int(kept * len(content)) if kept > 0 else int(kept)])
    assert fail(file).message.startswith(f"{file} cannot be read: ") and reason in fail(file).message


def test_a_damaged_page_of_parquet_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": [str(number) for number in range(1000)]}), file)
    content = bytearray(file.read_bytes())
    content[10:200] = b"\xff" * 190
    file.write_bytes(content)
    assert fail(file).message.startswith(f"{file} cannot be read: ")


def test_parquet_without_rows_or_with_a_column_twice_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": pyarrow.array([], pyarrow.string())}), file)
    assert fail(file).message == f"{file} has no rows"
    pyarrow.parquet.write_table(pyarrow.table([["a"], ["b"]], names=["text", "text"]), file)
    assert fail(file).message == f"{file} cannot be read: it has two columns of the name 'text'"


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def link_to_itself(path: Path) -> None:
    path.symlink_to(path)


PATHS: list[tuple[str, Callable[[Path], object], str]] = [
    ("missing", lambda path: None, "the file or folder {path} does not exist"),
    ("pipe.jsonl", make_pipe, "{path} is neither a file nor a folder"),
    ("link.jsonl", link_to_itself, "the file or folder {path} does not exist"),
    ("folder", Path.mkdir, "{path} has no file of training data: it is empty"),
]


@pytest.mark.parametrize(("name", "make", "message"), PATHS, ids=[case[0] for case in PATHS])
def test_a_path_that_is_no_data_is_reported(
    tmp_path: Path, name: str, make: Callable[[Path], object], message: str
) -> None:
    make(tmp_path / name)
    assert fail(tmp_path / name).message == message.format(path=tmp_path / name)


@pytest.mark.parametrize(
    ("names", "listed"),
    [
        (["a.txt", "b.arrow"], "a.txt, b.arrow"),
        (["test.jsonl", "val.jsonl"], "test.jsonl, val.jsonl"),
        (["a.gz", "b.gz", "c.gz", "d.gz", "e.gz", "f.gz", "g.gz"], "a.gz, b.gz, c.gz, d.gz, e.gz and 2 more"),
    ],
)
def test_a_folder_without_training_data_is_reported(tmp_path: Path, names: list[str], listed: str) -> None:
    for name in names:
        (tmp_path / name).write_text(GOOD)
    assert fail(tmp_path).message == f"{tmp_path} has no file of training data: it has {listed}"


def test_a_pipe_in_a_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(GOOD)
    os.mkfifo(tmp_path / "b.jsonl")
    assert fail(tmp_path).message == f"{tmp_path}/b.jsonl cannot be read: it is a pipe, not a regular file"


def test_columns_that_no_row_has_are_reported_once_with_those_of_the_data(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"question": "a", "answer": "b"}\n' * 30)
    error = fail(tmp_path / "a.jsonl", columns="prompt:questions,completion:reply")
    assert error.message == "columns=prompt:questions,completion:reply does not fit the data"
    assert error.problems == (
        "prompt:questions: no row has a column 'questions'; did you mean question?",
        "completion:reply: no row has a column 'reply'; available: answer, question",
    )
    assert error.hint == "the columns of the data are answer, question"


def test_many_bad_rows_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n' * 1000 + GOOD)
    error = fail(tmp_path / "a.jsonl")
    assert error.message == "1,000 of 1,001 rows cannot be used"
    assert error.problems[-1] == "and 980 more"
