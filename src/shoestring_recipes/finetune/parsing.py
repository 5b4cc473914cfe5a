"""The row of a file in one of the forms that are learned.

A row has the first of these forms whose columns it has; its other columns are named in a note. Forms with a column that
the option `columns` names come before all others.

    sft: messages; conversations; prompt and completion; instruction (with input) and output; text
    dpo: chosen and rejected, with prompt, or as whole conversations that begin with the same messages

`tools` and `system` may accompany all of them but `text`; and `history`, pairs of a question and its answer, those with
a prompt. A column without a value in a row is none of that row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from shoestring.base.reading import parse_json
from shoestring_recipes.finetune import calls, marks
from shoestring_recipes.finetune.columns import Columns
from shoestring_recipes.finetune.formats import kind_of
from shoestring_recipes.finetune.messages import FIRST_ROLES, parse_messages, require_answer
from shoestring_recipes.finetune.rows import Completion, Conversation, Message, Pair, Row, Text
from shoestring_recipes.finetune.turns import require_turns
from shoestring_recipes.rows import character_problem

Content: TypeAlias = str | tuple[Message, ...]
Tools: TypeAlias = tuple[Mapping[str, Any], ...] | None
Form: TypeAlias = tuple[str, ...]

FORMS: Mapping[str, tuple[Form, ...]] = {
    "sft": (("messages",), ("conversations",), ("prompt", "completion"), ("instruction", "output"), ("text",)),
    "dpo": (("chosen", "rejected"),),
}
"""The required columns of each form by method, in the order in which they are looked for."""

_UNWANTED = ("label", "kto_tag")
"""False in data for KTO, if an answer is not wanted; other values have other meanings."""
_OF_ALL = ("weight", *_UNWANTED)
_OF_MESSAGES = ("tools", "functions", "system", *_OF_ALL)
_OPTIONAL: Mapping[Form, tuple[str, ...]] = {
    ("messages",): _OF_MESSAGES,
    ("conversations",): _OF_MESSAGES,
    ("prompt", "completion"): ("history", *_OF_MESSAGES),
    ("instruction", "output"): ("input", "history", *_OF_MESSAGES),
    ("text",): _OF_ALL,
    ("chosen", "rejected"): ("prompt", "tools", "functions", "system", "weight"),
}
"""The columns that a row of a form may have besides."""

_SWITCHES = {"0": 0, "0.0": 0, "1": 1, "1.0": 1, "false": False, "true": True}
"""What cells of CSV hold."""
_MESSAGES = ("messages", "conversations")
_TEXTS_OR_MESSAGES = ("prompt", "completion", "chosen", "rejected")


def needed_columns(method: str, columns: Columns) -> set[str]:
    """Return the names in the files of all columns of which a row may be made."""
    ours = {name for form in FORMS[method] for name in (*form, *_OPTIONAL[form])}
    return {columns.get(name, name) for name in ours}


def unused_columns(raw: Mapping[str, Any], form: Form, columns: Columns) -> set[str]:
    """Return the columns of a row of this form, by their names in the file, that have no effect on it."""
    row = _by_our_names(raw, columns)
    unused = {name for name in _UNWANTED if not isinstance(row.get(name), bool)}
    if row.get("tools"):
        unused.add("functions")
    return raw.keys() - {columns.get(name, name) for name in {*form, *_OPTIONAL[form]} - unused}


def is_left_out(raw: Mapping[str, Any], columns: Columns) -> bool:
    """Return whether the column `weight` of a row says that it is not learned. Raises ValueError for fractions."""
    weight = _by_our_names(raw, columns).get("weight")
    return weight is not None and not marks.switch(weight, "weight")


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
    for ours in ("weight", *_UNWANTED):
        theirs = columns.get(ours, ours)
        row[theirs] = _SWITCHES.get(str(row.get(theirs)).lower(), row.get(theirs))
    return {name: row[name] for name in raw}


def find_form(raw: Mapping[str, Any], method: str, columns: Columns) -> Form | None:
    """Return the required columns of a row's form, by our names; None if it has no form."""
    present = _by_our_names(raw, columns)
    forms = [form for form in FORMS[method] if present.keys() >= set(form)]
    named = [form for form in forms if columns.keys() & set(form)]
    return next(iter([*named, *forms]), None)


class NoFormError(ValueError):
    """A row has not the columns of any form."""


def parse_row(raw: Mapping[str, Any], place: str, method: str, columns: Columns) -> Row:
    """Return the row of which `raw` has the values by their columns in the file.

    Raises NoFormError or ValueError with the reason if it has no usable one.
    """
    form = find_form(raw, method, columns)
    row = _by_our_names(raw, columns)
    if form is None:
        raise NoFormError(_describe_missing(row, raw, method))
    row = {name: value for name, value in row.items() if name in (*form, *_OPTIONAL[form])}
    _require_desirable(row)
    if form == ("text",):
        return Text(place=place, text=_parse_text(row["text"], "text"))
    tools = _parse_tools(row)
    before = parse_before(row)
    if form == ("chosen", "rejected"):
        return _parse_pair(row, place, tools, before)
    if form in (("prompt", "completion"), ("instruction", "output")):
        return _parse_completion(row, form, place, tools, before)
    (name,) = form
    value = row[name]
    if isinstance(value, str) and value.lstrip().startswith("["):  # tables hold messages as text, whose keys differ
        value = _parse_json(value, name)
    messages = joined(before, parse_messages(value, name), name)
    require_answer(messages, name)
    require_turns(messages)
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


def _require_desirable(row: Mapping[str, Any]) -> None:
    """Raise ValueError for an answer that is in data for KTO because it is not wanted."""
    for name in _UNWANTED:
        if row.get(name) is False:
            raise ValueError(
                f"{name} is false, which marks an answer that is not wanted (data for KTO); it would be learned"
            )


def _parse_completion(
    row: Mapping[str, Any], form: Form, place: str, tools: Tools, before: tuple[Message, ...]
) -> Completion | Conversation:
    """Return a prompt and its answer. After a `history` they are a conversation, of which all answers are learned."""
    asking, answering = form
    prompt: Content
    completion: Content
    if asking == "instruction":
        question = _parse_text(row[asking], asking)
        if row.get("input", "") != "":
            question += "\n\n" + _parse_text(row["input"], "input")
        prompt = _as_messages(question, "user")
        completion = _as_messages(_parse_text(row[answering], answering), "assistant")
    else:
        prompt, completion = (_parse_content(row[name], name) for name in form)
        _require_same_kind(asking, prompt, answering, completion)
        if before:
            prompt, completion = _as_messages(prompt, "user"), _as_messages(completion, "assistant")
    if isinstance(prompt, str) or isinstance(completion, str):
        return Completion(place=place, prompt=prompt, completion=completion, tools=tools)
    _require_answer(answering, completion)
    prompt = joined(before, prompt, asking)
    require_turns((*prompt, *completion))
    if "history" in row:
        return Conversation(place=place, messages=(*prompt, *completion), tools=tools)
    return Completion(place=place, prompt=prompt, completion=completion, tools=tools)


def _as_messages(content: Content, role: str) -> tuple[Message, ...]:
    return ({"role": role, "content": content},) if isinstance(content, str) else content


def parse_before(row: Mapping[str, Any]) -> tuple[Message, ...]:
    """Return the messages of the columns `system` and `history`, which precede a prompt. Raises ValueError."""
    return (*_parse_system(row.get("system")), *_parse_history(row.get("history")))


def joined(before: tuple[Message, ...], messages: tuple[Message, ...], name: str) -> tuple[Message, ...]:
    """Return messages after those of the columns `system` and `history`. Raises ValueError for two instructions."""
    own = messages[:1] if messages[0]["role"] in FIRST_ROLES else ()
    other = before[:1] if before and before[0]["role"] in FIRST_ROLES else ()
    if own and other and own[0]["content"] != other[0]["content"]:
        raise ValueError(f"the column system differs from the first message of {name}")
    return (*(own or other), *before[len(other) :], *messages[len(own) :])


def _parse_system(value: object) -> tuple[Message, ...]:
    if value is None or value == "":
        return ()
    return ({"role": "system", "content": _parse_text(value, "system")},)


def _parse_history(value: object) -> tuple[Message, ...]:
    """Return the messages of pairs of a question and its answer, perhaps JSON in a text."""
    if isinstance(value, str):
        value = _parse_json(value, "history")
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ValueError(f"history is {kind_of(value)}, not a list of pairs of a question and its answer")
    messages: list[Message] = []
    for number, pair in enumerate(value, start=1):
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError(f"item {number} of history is not a pair of a question and its answer")
        question, answer = (_parse_text(text, f"item {number} of history") for text in pair)
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return tuple(messages)


def _parse_pair(row: Mapping[str, Any], place: str, tools: Tools, before: tuple[Message, ...]) -> Pair:
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
    if before:
        prompt = _as_messages(prompt, "user")
        chosen, rejected = _as_messages(chosen, "assistant"), _as_messages(rejected, "assistant")
    if not isinstance(prompt, str):
        prompt = joined(before, prompt, "prompt")
        for answer in (chosen, rejected):
            require_turns((*prompt, *answer))
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


def _parse_tools(row: Mapping[str, Any]) -> Tools:
    """Return the tools of a list, or of its text in JSON; OpenAI's deprecated `functions` if there are none."""
    name = "tools" if row.get("tools") else "functions" if row.get("functions") else "tools"
    value = row.get(name)
    if isinstance(value, str):
        value = _parse_json(value, name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise ValueError(f"{name} is not a list of objects")
    return tuple(map(calls.parse_tool, value)) or None


def _parse_json(text: str, name: str) -> Any:
    try:
        return parse_json(text) if text.strip() else None
    except ValueError as error:
        raise ValueError(f"{name} is a text that is not valid JSON: {error}") from error
