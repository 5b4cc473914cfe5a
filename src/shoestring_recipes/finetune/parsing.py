"""The row of a file in one of the forms that are learned.

A row has the first of these forms whose columns it has; its other columns are ignored. Forms with a column that the
option `columns` names come before all others.

    sft: messages; conversations; prompt and completion; instruction (with input) and output; text
    dpo: chosen and rejected, with prompt, or as whole conversations that begin with the same messages

`tools` may accompany all of them but `text`. A column without a value in a row is none of that row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from shoestring.base.reading import parse_json
from shoestring_recipes.finetune.columns import Columns
from shoestring_recipes.finetune.formats import kind_of
from shoestring_recipes.finetune.messages import parse_messages, require_answer
from shoestring_recipes.finetune.rows import Completion, Conversation, Message, Pair, Row, Text
from shoestring_recipes.rows import character_problem

Content: TypeAlias = str | tuple[Message, ...]
Tools: TypeAlias = tuple[Mapping[str, Any], ...] | None

FORMS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "sft": (("messages",), ("conversations",), ("prompt", "completion"), ("instruction", "output"), ("text",)),
    "dpo": (("chosen", "rejected"),),
}
"""The required columns of each form by method, in the order in which they are looked for."""

_OPTIONAL = ("tools", "input", "prompt")
_MESSAGES = ("messages", "conversations")
_TEXTS_OR_MESSAGES = ("prompt", "completion", "chosen", "rejected")


def needed_columns(method: str, columns: Columns) -> set[str]:
    """Return the names in the files of all columns of which a row may be made."""
    ours = {name for form in FORMS[method] for name in form} | set(_OPTIONAL)
    return {columns.get(name, name) for name in ours}


def parse_cells(raw: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    """Return a row of CSV with the messages that its cells hold as JSON, and None for empty cells.

    Raises ValueError with the reason.
    """
    row = {name: value or None for name, value in raw.items()}
    for ours in (*_MESSAGES, *_TEXTS_OR_MESSAGES):
        theirs = columns.get(ours, ours)
        cell = row.get(theirs)
        if cell is None or not (ours in _MESSAGES or cell.lstrip().startswith("[")):
            continue
        try:
            value = parse_json(cell)
        except ValueError as error:
            if ours in _MESSAGES:
                raise ValueError(f"{ours} is a text that is not valid JSON: {error}") from error
            continue
        # Any other list is a text that begins with a bracket.
        has_roles = value and all(isinstance(item, dict) and item.keys() & {"role", "from"} for item in value)
        if ours in _MESSAGES or has_roles:
            row[theirs] = value
    return row


def find_form(raw: Mapping[str, Any], method: str, columns: Columns) -> tuple[str, ...] | None:
    """Return the required columns of a row's form, by our names; None if it has no form."""
    present = _by_our_names(raw, columns)
    forms = [form for form in FORMS[method] if present.keys() >= set(form)]
    named = [form for form in forms if columns.keys() & set(form)]
    return next(iter([*named, *forms]), None)


def parse_row(raw: Mapping[str, Any], place: str, method: str, columns: Columns) -> Row:
    """Return the row of which `raw` has the values by their columns in the file.

    Raises ValueError with the reason if it has no usable one.
    """
    form = find_form(raw, method, columns)
    row = _by_our_names(raw, columns)
    if form is None:
        raise ValueError(_describe_missing(row, raw, method))
    if form == ("text",):
        return Text(place=place, text=_parse_text(row["text"], "text"))
    tools = _parse_tools(row.get("tools"))
    if form == ("chosen", "rejected"):
        return _parse_pair(row, place, tools)
    if form == ("prompt", "completion"):
        prompt, completion = (_parse_content(row[name], name) for name in form)
        _require_same_kind("prompt", prompt, "completion", completion)
        _require_answer("completion", completion)
        return Completion(place=place, prompt=prompt, completion=completion, tools=tools)
    if form == ("instruction", "output"):
        return _parse_instruction(row, place, tools)
    (name,) = form
    messages = parse_messages(row[name], name)
    require_answer(messages, name)
    return Conversation(place=place, messages=messages, tools=tools)


def _by_our_names(raw: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    """Return the columns that have a value. One with our name is another one where `columns` gives it to a second."""
    ours = {theirs: ours for ours, theirs in columns.items()}
    present = {name: value for name, value in raw.items() if value is not None}
    return {ours.get(name, name): value for name, value in present.items() if name in ours or name not in columns}


def _describe_missing(row: Mapping[str, Any], raw: Mapping[str, Any], method: str) -> str:
    needed = {"sft": "messages, prompt or text", "dpo": "chosen or rejected"}
    other = "dpo" if method == "sft" else "sft"
    if any(raw.keys() >= set(form) for form in FORMS[other]):
        return f"has the columns of method={other}, but for method={method} no column {needed[method]}"
    for form in FORMS[method]:
        missing = [name for name in form if name not in row]
        if len(missing) < len(form):
            return f"has no {missing[0]}"
    names = ", ".join(sorted(raw)[:20])
    return f"has no column {needed[method]}; its columns are {names}" if names else "has no columns"


def _parse_instruction(row: Mapping[str, Any], place: str, tools: Tools) -> Completion:
    question, answer = _parse_text(row["instruction"], "instruction"), _parse_text(row["output"], "output")
    if row.get("input", "") != "":
        question += "\n\n" + _parse_text(row["input"], "input")
    return Completion(
        place=place,
        prompt=({"role": "user", "content": question},),
        completion=({"role": "assistant", "content": answer},),
        tools=tools,
    )


def _parse_pair(row: Mapping[str, Any], place: str, tools: Tools) -> Pair:
    chosen, rejected = (_parse_content(row[name], name) for name in ("chosen", "rejected"))
    _require_same_kind("chosen", chosen, "rejected", rejected)
    if chosen == rejected:
        raise ValueError("chosen and rejected are equal")
    prompt = _parse_content(row["prompt"], "prompt") if "prompt" in row else None
    if not isinstance(chosen, str) and not isinstance(rejected, str):
        # Published pairs repeat the question as text beside two whole conversations.
        if prompt is None or (isinstance(prompt, str) and _asks(chosen, prompt)):
            prompt, chosen, rejected = _divide(chosen, rejected)
    elif prompt is None:
        raise ValueError("has no prompt, and chosen and rejected are no conversations")
    _require_same_kind("prompt", prompt, "chosen", chosen)
    for name, answer in (("chosen", chosen), ("rejected", rejected)):
        _require_answer(name, answer)
    return Pair(place=place, prompt=prompt, chosen=chosen, rejected=rejected, tools=tools)


def _asks(messages: tuple[Message, ...], question: str) -> bool:
    return any(message["role"] == "user" and message["content"].strip() == question.strip() for message in messages)


def _divide(
    chosen: tuple[Message, ...], rejected: tuple[Message, ...]
) -> tuple[tuple[Message, ...], tuple[Message, ...], tuple[Message, ...]]:
    """Return the messages with which two whole conversations begin, and what follows in each."""
    count = 0
    while count < min(len(chosen), len(rejected)) and chosen[count] == rejected[count]:
        count += 1
    if not count:
        raise ValueError("chosen and rejected do not begin with the same message, which would be the prompt")
    for name, messages in (("chosen", chosen), ("rejected", rejected)):
        if len(messages) == count:
            raise ValueError(f"{name} has no answer after the messages with which both begin")
    return chosen[:count], chosen[count:], rejected[count:]


def _require_answer(name: str, answer: Content) -> None:
    """Raise ValueError if an answer that is a list of messages does not begin as one."""
    if isinstance(answer, str):
        return
    if answer[0]["role"] not in ("assistant", "tool"):
        raise ValueError(f"the answer in {name} begins with a message of the role {answer[0]['role']}")
    require_answer(answer, name)


def _require_same_kind(name: str, value: Content, other_name: str, other: Content) -> None:
    if isinstance(value, str) != isinstance(other, str):
        kind, other_kind = ("a text" if isinstance(item, str) else "a list of messages" for item in (value, other))
        raise ValueError(f"{name} is {kind}, but {other_name} is {other_kind}")


def _parse_content(value: object, name: str) -> Content:
    if isinstance(value, str | list):
        return _parse_text(value, name) if isinstance(value, str) else parse_messages(value, name)
    raise ValueError(f"{name} is {kind_of(value)}, not a text or a list of messages")


def _parse_text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is {kind_of(value)}, not a text")
    if problem := character_problem(value):
        raise ValueError(f"{name} {problem}")
    if not value.strip():
        raise ValueError(f"{name} is empty")
    return value


def _parse_tools(value: object) -> Tools:
    """Return the tools of a list, or of its text in JSON."""
    if isinstance(value, str):
        try:
            value = parse_json(value) if value.strip() else None
        except ValueError as error:
            raise ValueError(f"tools is a text that is not valid JSON: {error}") from error
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise ValueError("tools is not a list of objects")
    return tuple(value) or None
