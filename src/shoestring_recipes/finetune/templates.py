"""Chat templates: reading one from a file, and finding the assistant's turns in the text that one writes."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import jinja2

from shoestring.base.errors import UsageError
from shoestring.base.reading import read_bytes, reason
from shoestring.base.units import MIB
from shoestring_recipes.finetune.rows import Message
from shoestring_recipes.template_limits import TemplateLimitError

Write: TypeAlias = Callable[[Sequence[Message], bool], str]
"""Returns the text of messages; the flag asks for the generation prompt, which begins an answer, at its end."""

Span: TypeAlias = tuple[int, int]
"""Start and end of characters in a text, the end excluded."""

OPENINGS = (
    "<|im_start|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<bos>",
    "<start_of_turn>",
    "<s>[INST]",
    "[INST]",
    "<|user|>",
    "<|system|>",
    "<|start|>",
    "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
    "<|START_OF_TURN_TOKEN|>",
)
"""How the texts of common chat templates begin. A message that begins so is no message but a rendered conversation."""

_GENERATION = re.compile(r"\{%([-+]?)\s*generation\s*([-+]?)%\}")
_END_GENERATION = re.compile(r"\{%([-+]?)\s*endgeneration\s*([-+]?)%\}")
_CLOCK = re.compile(r"""strftime_now\(\s*(?:"([^"]*)"|'([^']*)')\s*\)""")
_DATE = datetime.date(2024, 7, 26)  # that of Llama's templates where there is no clock
_BEGIN_MARK, _END_MARK = "\ue000generation\ue000", "\ue000endgeneration\ue000"  # of private use: in no text
_QUOTED = 30
_END_LENGTH = 80


class PrefixChangedError(ValueError):
    """A template writes the beginning of a conversation differently when more messages follow."""


def read_template(path: Path) -> str:
    """Return the chat template in a file. Raises UsageError if it cannot be read, or is no template in Jinja."""
    try:
        template = read_bytes(path, follow=True, max_bytes=MIB).decode()
    except (OSError, ValueError) as error:
        raise UsageError(f"the chat template {path} cannot be read: {reason(error)}") from error
    # `generation` is a tag of transformers, which Jinja does not know.
    known_tags = _END_GENERATION.sub(r"{%\1endif\2%}", _GENERATION.sub(r"{%\1if true\2%}", template))
    try:
        jinja2.Environment(extensions=["jinja2.ext.loopcontrols"]).parse(known_tags)
    except jinja2.TemplateSyntaxError as error:
        raise UsageError(
            f"{path}, line {error.lineno}: the chat template is not valid Jinja: {error.message}"
        ) from error
    return template


@lru_cache
def has_generation(template: str) -> bool:
    """Return whether a template marks what the assistant generates with `{% generation %}`."""
    return _GENERATION.search(template) is not None


@lru_cache
def with_marks(template: str) -> str:
    """Return a template that writes a mark where `{% generation %}` begins and ends, for `split_marks`.

    transformers finds these places too, but only while it divides one conversation after another into tokens.
    """
    # A filter is a scope of variables, as `generation` is. An empty text occurs first at the beginning.
    begin = rf'{{%\1 filter replace("", "{_BEGIN_MARK}", 1) \2%}}'
    return _END_GENERATION.sub(rf'{{%\1 endfilter %}}{{% print "{_END_MARK}" \2%}}', _GENERATION.sub(begin, template))


def split_marks(text: str) -> tuple[str, list[Span]]:
    """Return a text without the marks in it, and the characters between them."""
    plain, spans = "", []
    first, *marked_texts = text.split(_BEGIN_MARK)
    plain += first
    for part in marked_texts:
        inside, _, after = part.partition(_END_MARK)
        spans.append((len(plain), len(plain) + len(inside)))
        plain += inside + after
    return plain, spans


@lru_cache
def with_fixed_date(template: str) -> str:
    """Return the template with a constant date in place of today's.

    A run that is resumed on another day would otherwise receive other samples.
    """
    return _CLOCK.sub(lambda match: json.dumps(_DATE.strftime(match[1] or match[2] or "")), template)


@dataclass(frozen=True, kw_only=True)
class Markup:
    """What a template writes around the messages, found by rendering one question and its answer."""

    text: str = ""
    """The rendered texts as a whole, in which all usual tokens of the template occur."""
    generation_prompt: str = ""
    after_answer: str = ""


def find_markup(write: Write, added: Iterable[str]) -> Markup:
    """Return the markup of a template; `added` are the tokens that were added to a vocabulary, such as special ones.

    It is empty if the template rejects a plain question and its answer.
    """
    question, answer = {"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}
    try:
        bare, prompt = write([question], False), write([question], True)
        whole = write([question, answer], False)
    except TemplateLimitError:
        raise
    except Exception:  # noqa: BLE001  (a template's code may raise anything; a row's rendering reports it)
        return Markup()
    # Two tokens may begin alike, `<|user|>` and `<|end|>`: the generation prompt begins with a whole one.
    place = _common_length(prompt, bare)
    starts = [prompt.find(token, max(0, place - len(token) + 1)) for token in added if token]
    generation_prompt = prompt[min([start for start in starts if 0 <= start < place], default=place) :]
    _, separator, after = whole.rpartition("answer")
    return Markup(text=prompt + whole, generation_prompt=generation_prompt, after_answer=after if separator else "")


def needs_text_arguments(write: Write) -> bool:
    """Return whether a template writes the arguments of a tool call only if they are a text in JSON.

    Most need an object, from which they write JSON or single parameters; a text would be encoded twice.
    """
    value = "Oslo"
    texts = {}
    for as_text in (False, True):
        arguments = json.dumps({"city": value}) if as_text else {"city": value}
        call = {"id": "call12345", "type": "function", "function": {"name": "weather", "arguments": arguments}}
        messages: list[Message] = [
            {"role": "user", "content": "question"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "answer", "name": "weather", "tool_call_id": "call12345"},
        ]
        try:
            texts[as_text] = write(messages, False)
        except TemplateLimitError:
            raise
        except Exception:  # noqa: BLE001  (a template's code may raise anything)
            texts[as_text] = ""
    # An object that is added to a text becomes Python's notation of it, which is no JSON.
    writes_object = value in texts[False] and str({"city": value}) not in texts[False]
    return not writes_object and value in texts[True]


def find_end(markup: Markup, added: Mapping[str, int]) -> int | None:
    """Return the last of the tokens `added` to a vocabulary that the template writes after an answer, or None."""
    stop_tokens = [token for token in added if token in markup.after_answer]
    return (
        added[max(stop_tokens, key=lambda token: markup.after_answer.rfind(token) + len(token))]
        if stop_tokens
        else None
    )


def misplaced_pattern(markup: Markup, special: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of what no message contains unless a template was applied to it before.

    That is a `special` token that this template writes, anywhere, or the opening of another one at the beginning.
    """
    written = "|".join(re.escape(token) for token in special if token and token in markup.text)
    openings = "|".join(map(re.escape, OPENINGS))
    return re.compile(rf"\A\s*(?:{openings})|(?:{written or '(?!)'})")


def message_texts(message: Message) -> Iterator[str]:
    """Yield the content of a message, or its parts that are texts."""
    content = message.get("content")
    for part in content if isinstance(content, list | tuple) else [content]:
        text = part.get("text") if isinstance(part, Mapping) else part
        if isinstance(text, str):
            yield text


def require_contents(messages: Sequence[Message], turns: Sequence[int], whole: str) -> None:
    """Raise ValueError if the template has left out the content of one of the answers `turns`.

    Templates may do so for a text where they expect a list of parts, or the other way round.
    """
    for turn in turns:
        # Templates strip white space, and may remove reasoning from the beginning.
        if any(text.strip()[-_QUOTED:] not in whole for text in message_texts(messages[turn])):
            raise ValueError(f"message {turn + 1}: the template leaves out its content")
        if any(call["function"]["name"] not in whole for call in messages[turn].get("tool_calls", ())):
            raise ValueError(f"message {turn + 1}: the template leaves out its tool calls")


def find_start(write: Write, messages: Sequence[Message], turn: int, whole: str) -> int:
    """Return where the answer `messages[turn]` begins in `whole`, the text of all messages: after its prompt.

    Raises PrefixChangedError if `whole` does not begin with that prompt, as it is when the model is asked.
    """
    prompt = write(messages[:turn], True)
    if not whole.startswith(prompt):
        raise PrefixChangedError(f"the prompt of message {turn + 1} {_difference(prompt, whole)}")
    return len(prompt)


def describe_end(write: Write, messages: Sequence[Message]) -> str:
    """Return what a template makes of messages, for people: the end of its text, or why it rejects them."""
    try:
        text = write(messages, False)
    except TemplateLimitError:
        raise
    except Exception as error:  # noqa: BLE001  (a template's code may raise anything)
        return f"the chat template rejects them: {(str(error).splitlines() or [type(error).__name__])[0]}"
    return f"the chat template writes at their end: {'...' if len(text) > _END_LENGTH else ''}{text[-_END_LENGTH:]!r}"


def find_part_spans(whole: str, span: Span, content: str, parts: Sequence[Span]) -> list[Span]:
    """Return the characters of the learned `parts` of a content in an answer, and those of its end.

    Raises ValueError if the template writes the content differently.
    """
    start = whole.find(content, span[0], span[1])
    if start < 0:
        raise ValueError("the template changes the content, whose parts are marked by train_detail")
    end = (start + len(content), span[1])
    return [(start + first, start + last) for first, last in parts] + ([end] if parts and end[0] < end[1] else [])


def find_answers(
    write: Write, messages: Sequence[Message], turns: Sequence[int], whole: str, markup: Markup
) -> list[Span]:
    """Return the characters of the answers `turns`, with the end of the turn and without white space after it.

    Raises PrefixChangedError if a prefix of the conversation is rendered differently when more messages follow.
    """
    spans = []
    for turn in turns:
        start = find_start(write, messages, turn, whole)
        end = len(whole) if turn == len(messages) - 1 else _find_end(write, messages, turn, whole, markup)
        spans.append((start, start + len(whole[start:end].rstrip())))
    return spans


def _find_end(write: Write, messages: Sequence[Message], turn: int, whole: str, markup: Markup) -> int:
    text = write(messages[: turn + 1], False)
    if whole.startswith(text):
        return len(text)
    # Some templates write a token at the end of the conversation (Phi-3), but not if there is a generation prompt.
    following = write(messages[: turn + 1], True)
    continued = following.removesuffix(markup.generation_prompt)
    if continued != following and whole.startswith(continued):
        return len(continued)
    raise PrefixChangedError(f"message {turn + 1} {_difference(text, whole)}")


def _common_length(first: str, second: str) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (character, other) in pairs if character != other), min(len(first), len(second)))


def _difference(prefix: str, whole: str) -> str:
    place = _common_length(prefix, whole)
    before = prefix[max(0, place - _QUOTED) : place]
    quoted, continued = prefix[place : place + _QUOTED], whole[place : place + _QUOTED]
    return f"ends with {quoted!r} after {before!r} by itself, but {continued!r} follows in the whole conversation"
