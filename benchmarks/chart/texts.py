"""Completions on which two implementations of the seven rewards may differ, with their annotations."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

TYPES = ("line", "bar", "stacked bar", "pie", "histogram", "scatterplot", "area", "stacked area", "bubble", "treemap")
WORDS = ("the", "price", "of", "2001", "is", "4.5%", "größer", "als", "値段", "and", "highest", "sum", "÷", "İstanbul")
LABELS = (
    "10",
    "-10",
    "0",
    "-0.000001",
    "3.5",
    "Yes",
    "größer",
    "İstanbul",
    "nan",
    "inf",
    "1e3",
    "12%",
    "[1, 2]",
    "1_000",
)

Change = Callable[[str, random.Random], str]


def make_texts(count: int = 200, seed: int = 0) -> list[tuple[str, dict[str, Any]]]:
    """Return `count` unique completions, each with its annotations; a correct one for each of the first ten charts."""
    rng = random.Random(seed)
    texts: dict[str, dict[str, Any]] = {"": _annotations(rng, 0)}
    for text in ("no tags at all", "\N{SNOWMAN}\n" * 9, '{"columns": [], "rows": []}', "bar", "<answer>10</answer>"):
        texts[text] = _annotations(rng, 1)
    number = 0
    while len(texts) < count:
        annotations = _annotations(rng, number)
        text = _correct(rng, annotations)
        for change in rng.sample(CHANGES, 0 if number < 10 else rng.choice((1, 1, 2, 3))):
            text = change(text, rng)
        texts.setdefault(text, annotations)
        number += 1
    return list(texts.items())


def _annotations(rng: random.Random, number: int) -> dict[str, Any]:
    """Return the annotations of a chart; a table's cells are texts, as in the guide's data, or rarely others."""
    width, height = rng.randint(1, 3), rng.randint(0 if number > 10 else 1, 4)
    rows: list[list[Any]] = [[_cell(rng) for _ in range(width)] for _ in range(height)]
    columns: list[Any] = [rng.choice(WORDS) + str(column) for column in range(width)]
    if number > 10 and rng.random() < 0.1:
        rows.append([rng.choice((None, 7, 2.5))])
    if number > 10 and rng.random() < 0.1:
        columns.insert(0, 2001)
    return {
        "label": rng.choice(LABELS),
        "chart_type": rng.choice((TYPES[number % len(TYPES)], "Bar")),
        "table": {"columns": columns, "rows": rows},
        "reasoning": _steps(rng) if rng.random() < 0.95 else "",
    }


def _cell(rng: random.Random) -> str:
    return rng.choice((str(rng.randint(1990, 2020)), f"{rng.random() * 100:.1f}", rng.choice(WORDS)))


def _steps(rng: random.Random) -> str:
    lengths = [rng.randint(1, 12) for _ in range(rng.randint(0, 7))]
    return "\n".join(
        f"<step-{number}>: {' '.join(rng.choices(WORDS, k=length))}" for number, length in enumerate(lengths, 1)
    )


def _correct(rng: random.Random, annotations: dict[str, Any]) -> str:
    table = {
        "columns": list(annotations["table"]["columns"]),
        "rows": [[_number(cell) for cell in row] for row in annotations["table"]["rows"]],
    }
    steps = annotations["reasoning"] if rng.random() < 0.5 else _steps(rng)
    return (
        f"<think>\n<type>{annotations['chart_type']}</type>\n<table>{json.dumps(table, ensure_ascii=False)}</table>\n"
        f"{steps}\n</think>\n<answer>{annotations['label']}</answer>"
    )


def _number(cell: Any) -> Any:
    """Return a cell as a policy writes it: numbers as numbers of JSON."""
    try:
        return json.loads(cell)
    except (TypeError, ValueError):
        return cell


def _with_table(text: str, value: str) -> str:
    first, _, rest = text.partition("<table>")
    return f"{first}<table>{value}</table>{rest.partition('</table>')[2]}"


def _change_cell(text: str, rng: random.Random) -> str:
    """Change the table by its content: rows and columns are added, removed, reordered or of another type."""
    try:
        table = json.loads(text.partition("<table>")[2].partition("</table>")[0])
        columns, rows = list(table["columns"]), [list(row) for row in table["rows"]]
    except (ValueError, KeyError, TypeError):
        return text
    changes: list[dict[str, Any]] = [
        {"columns": columns[::-1], "rows": rows[::-1]},
        {"columns": [str(name).upper() for name in columns], "rows": rows},
        {"columns": columns, "rows": rows + rows},
        {"columns": columns, "rows": [dict(enumerate(row)) for row in rows]},
        {"columns": columns, "rows": [*rows, "no list"]},
        {"columns": columns, "rows": [[None, True, 1e9], *rows]},
        {"columns": [*columns, None], "rows": rows},
        {"columns": dict.fromkeys(map(str, columns), 1), "rows": rows},
        {"columns": "abc", "rows": {}},
        {"columns": columns},
        {"columns": columns, "rows": rows, "note": "more"},
        {"rows": rows, "Columns": columns},
        {"columns": columns[:1], "rows": [row[:1] for row in rows]},
    ]
    return _with_table(text, json.dumps(rng.choice(changes), ensure_ascii=rng.random() < 0.5))


def _answer(value: str) -> Change:
    def change(text: str, _: random.Random) -> str:
        first, mark, rest = text.rpartition("<answer>")
        return f"{first}{mark}{value}{rest[rest.find('</answer>') :]}" if mark else text

    return change


def _table(value: str) -> Change:
    return lambda text, _: _with_table(text, value)


def _remove(mark: str) -> Change:
    return lambda text, _: text.replace(mark, "", 1)


def _repeat(mark: str) -> Change:
    return lambda text, _: text.replace(mark, mark * 2, 1)


def _cut(text: str, rng: random.Random) -> str:
    return text[: rng.randint(1, len(text))] if text else text


def _pad(text: str, rng: random.Random) -> str:
    filler = " ".join(rng.choices(WORDS, k=rng.randint(5, 60)))
    return text.replace("</think>", f"{filler}</think>", 1)


MARKS = ("<think>", "</think>", "<type>", "</type>", "<table>", "</table>", "<answer>", "</answer>")
CHANGES: list[Change] = [
    *map(_remove, MARKS),
    *map(_repeat, MARKS),
    *map(_answer, ("10.4", "10.6", "-500", "9.51", "YES", "yes.", " 10.. ", "", "$10", "1e400", "NaN", "-inf")),
    _answer("1,000"),
    _answer("\N{FULLWIDTH DIGIT ONE}0"),
    *map(_table, ("", "[]", "{", "null", "5", "-Infinity", '"columns"', '["columns", "rows"]', "[[1]]", "{}", "[" * 9)),
    *(6 * [_change_cell]),
    lambda text, _: text.replace("<table>", "<table>\n```json\n").replace("</table>", "\n```\n</table>"),
    lambda text, _: text.replace("<table>", "<table>Here it is: ```json"),
    lambda text, _: text.replace("</type>\n", "</type>"),
    lambda text, _: text.replace("<think>\n", "<think>"),
    lambda text, _: text.replace("</think>\n", "</think>\n\n"),
    lambda text, _: text.replace("\n", "\r\n"),
    lambda text, _: text.replace("<step-", "step "),
    lambda text, _: text.upper(),
    lambda text, _: text.lower(),
    lambda text, _: f"Sure!\n{text}",
    lambda text, _: f"{text}\nI hope that this helps.",
    lambda text, _: f"{text} I hope that this helps.",
    lambda text, _: text + text,
    lambda text, _: text[text.find("<answer>") :] + text[: text.find("<answer>")],
    _cut,
    _cut,
    _pad,
    _pad,
]  # fmt: skip
