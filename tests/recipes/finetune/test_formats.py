import csv
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from shoestring_recipes.finetune.formats import READERS


def rows(path: Path, content: bytes | str, *wanted: str) -> list[tuple[str, dict[str, Any] | str]]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(READERS[path.suffix](path, wanted))


def parquet_rows(path: Path, table: pyarrow.Table, *wanted: str) -> list[tuple[str, dict[str, Any] | str]]:
    pyarrow.parquet.write_table(table, path)
    return list(READERS[".parquet"](path, wanted))


@pytest.mark.parametrize("ending", [".jsonl", ".ndjson", ".json"])
def test_json_lines_may_have_a_byte_order_mark_and_blank_lines(tmp_path: Path, ending: str) -> None:
    content = '\ufeff{"text": "é"}\r\n\n  \n{"text": "b"}'
    assert rows(tmp_path / f"a{ending}", content) == [("line 1", {"text": "é"}), ("line 4", {"text": "b"})]


@pytest.mark.parametrize("content", ['[{"text": "a"}, 3]', '{"version": 1, "data": [{"text": "a"}, 3]}'])
def test_json_is_a_list_of_rows_or_has_one(tmp_path: Path, content: str) -> None:
    assert rows(tmp_path / "a.json", content, "text") == [
        ("row 1", {"text": "a"}),
        ("row 2", "is a number, not an object with columns"),
    ]


def test_json_with_one_row_is_that_row(tmp_path: Path) -> None:
    assert rows(tmp_path / "a.json", '{"messages": []}', "messages") == [("row 1", {"messages": []})]


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ";"), ("a.csv", "\t"), ("a.tsv", "\t"), ("a.csv", ",")])
def test_csv_has_the_delimiter_of_its_header(tmp_path: Path, name: str, delimiter: str) -> None:
    content = f'\ufeffprompt{delimiter}completion\n"a, b; c"{delimiter}d\n'
    assert rows(tmp_path / name, content) == [("line 2", {"prompt": "a, b; c", "completion": "d"})]


def test_csv_rows_are_where_they_begin(tmp_path: Path) -> None:
    content = '\ufeffprompt, completion\r\n"two\nlines",b\r\n\r\nc,"say ""d"""\ne,f,g\ncaf,h\n'
    lines = rows(tmp_path / "a.csv", content.encode().replace(b"caf", b"caf\xe9"))
    assert lines == [
        ("line 2", {"prompt": "two\nlines", "completion": "b"}),
        ("line 5", {"prompt": "c", "completion": 'say "d"'}),
        ("line 6", "has 3 cells, but the header has 2"),
        ("line 7", "is not UTF-8"),
    ]


def test_tsv_is_divided_by_tabs(tmp_path: Path) -> None:
    assert rows(tmp_path / "a.tsv", "text\tb\nx,y\tz\n") == [("line 2", {"text": "x,y", "b": "z"})]


def test_long_cells_are_read_and_the_limit_of_the_process_stays(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    text = "a" * (limit + 1)
    assert rows(tmp_path / "a.csv", f"text\n{text}\n") == [("line 2", {"text": text})]
    assert csv.field_size_limit() == limit


def test_parquet_gives_wanted_columns_without_keys_that_only_other_rows_have(tmp_path: Path) -> None:
    call = {"function": {"name": "f", "arguments": {"x": 1}}}
    chats = [
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}], "image": b"x"},
        {"messages": None, "image": b"y"},
    ]
    found = parquet_rows(tmp_path / "a.parquet", pyarrow.Table.from_pylist(chats), "messages", "text")
    assert found == [
        ("row 1", {"messages": chats[0]["messages"], "image": None}),
        ("row 2", {"messages": None, "image": None}),
    ]


def test_parquet_is_read_over_batches_and_row_groups(tmp_path: Path) -> None:
    table = pyarrow.table({"text": [str(number) for number in range(200)]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=90)
    found = list(READERS[".parquet"](tmp_path / "a.parquet", ["text"]))
    assert found == [(f"row {number + 1}", {"text": str(number)}) for number in range(200)]


def test_parquet_with_too_large_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoestring_recipes.finetune.formats.DATA_BYTES", 2**20)
    table = pyarrow.table({"text": ["x" * 10_000] * 200})  # small in the file, where a value is stored once
    with pytest.raises(ValueError, match=r"its rows have more than 1\.00 MiB"):
        parquet_rows(tmp_path / "a.parquet", table, "text")
    assert (tmp_path / "a.parquet").stat().st_size < 2**20


def test_parquet_text_that_is_not_utf8_is_a_bad_row(tmp_path: Path) -> None:
    good, bad = b"good", b"caf\xe9"
    table = pyarrow.table({"text": pyarrow.array([good, bad, good]).view(pyarrow.string())})
    assert parquet_rows(tmp_path / "a.parquet", table, "text") == [
        ("row 1", {"text": "good"}),
        ("row 2", "is not UTF-8"),
        ("row 3", {"text": "good"}),
    ]


def test_every_format_gives_the_same_rows(tmp_path: Path) -> None:
    table = [{"prompt": "a, b", "completion": "c"}, {"prompt": 'd "e"', "completion": "f\ng"}]
    cells = [[row["prompt"], row["completion"]] for row in table]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["prompt", "completion"], *cells])
    with (tmp_path / "a.tsv").open("w", newline="") as file:
        csv.writer(file, delimiter="\t").writerows([["prompt", "completion"], *cells])
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table))
    (tmp_path / "a.ndjson").write_text("\n".join(map(json.dumps, table)))
    (tmp_path / "a.json").write_text(json.dumps(table, indent=1))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), tmp_path / "a.parquet")
    for ending, reader in READERS.items():
        assert [row for _, row in reader(tmp_path / f"a{ending}", ["prompt", "completion"])] == table, ending
