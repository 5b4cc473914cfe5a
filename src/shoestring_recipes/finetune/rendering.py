"""Rendering: from a row to the tokens that the model receives, with a mark on each token that is learned.

In conversations the assistant's turns are learned: what the chat template marks with `{% generation %}`, or if it has
no such marks, what it writes after the prompt of each turn. A conversation is always divided into tokens as a whole,
because the tokens of its parts may differ at their boundaries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias

from shoestring.base.errors import DataError, UsageError
from shoestring_recipes.finetune import calls, learned, marks, templates
from shoestring_recipes.finetune.encoding import Encoder, Written
from shoestring_recipes.finetune.learned import TrainOn
from shoestring_recipes.finetune.rejected import Rejected, require_none
from shoestring_recipes.finetune.rows import Completion, Conversation, Message, Pair, Row, Text
from shoestring_recipes.finetune.samples import PairSample, Sample
from shoestring_recipes.template_limits import TemplateLimitError, rendered, require_fast

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

Tools: TypeAlias = Sequence[Mapping[str, Any]] | None
Single: TypeAlias = Conversation | Completion | Text

_ROWS_AT_ONCE = 256
_TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}

ROLE_PART = "messages of the "
ARGUMENTS_AS_OBJECTS = "whose tool calls have arguments as text: read as JSON, because the chat template writes objects"
ARGUMENTS_AS_TEXT = "whose tool calls have arguments as objects: written as JSON, because the chat template needs text"
DEVELOPER_AS_SYSTEM = "with the role developer, which the chat template does not know: written as the role system"


class Renderer:
    """Turns rows into samples, and prompts into tokens."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        template: str | None = None,
        as_chat: bool = False,
        train_on: TrainOn = "assistant",
        seq_len: int,
        stop_ids: Collection[int] = (),
    ) -> None:
        """`template` replaces the tokenizer's; `stop_ids` are the end tokens of the model's generation configuration.

        With `as_chat` the template is also applied to prompts and completions that are texts without its markup.

        Raises UsageError for a tokenizer that cannot say which characters a token stands for.
        """
        self._tokenizer, self._template, self._train_on = tokenizer, template, train_on
        self.has_template = bool(template or tokenizer.chat_template)
        self._as_chat = as_chat and self.has_template
        self.seq_len = seq_len
        added = {token.content: number for number, token in tokenizer.added_tokens_decoder.items()}
        special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        self._markup = templates.Markup()
        if self.has_template:
            self._markup = templates.find_markup(partial(self._write, None), added)
        self._misplaced = templates.misplaced_pattern(self._markup, special)
        turn_end = templates.find_end(self._markup, added)
        self.stop_tokens = frozenset({*stop_ids, tokenizer.eos_token_id, turn_end} - {None})
        """The tokens that end a generation: the model's, the tokenizer's, and that of the chat template."""
        self._encoder = Encoder(tokenizer, seq_len=seq_len, stop_tokens=self.stop_tokens)

    def render(self, row: Single) -> Sample:
        """Return the sample of a row. Raises as `render_all` does."""
        return self.render_all([row])[0]

    def render_pair(self, row: Pair) -> PairSample:
        """Return the samples of a preferred and a rejected answer. Raises as `render_all` does."""
        return self.render_pairs([row])[0]

    def render_all(self, rows: Sequence[Row], progress: Callable[[int], None] | None = None) -> list[Sample]:
        """Return the samples of rows other than pairs. `progress` is told how many rows are done.

        Raises DataError listing the rows that the chat template rejects, or where it writes the beginning of a
        conversation differently when more messages follow; UsageError if there is no template for conversations, or
        one that takes too long.
        """
        samples, rejected = self.render_usable(rows, progress)
        require_none(rejected, len(rows))
        return [sample for sample in samples if sample is not None]

    def render_pairs(self, rows: Sequence[Pair], progress: Callable[[int], None] | None = None) -> list[PairSample]:
        """Return the samples of pairs, of which the answers alone are learned. Raises as `render_all` does."""
        samples, rejected = self.render_usable_pairs(rows, progress)
        require_none(rejected, len(rows))
        return [sample for sample in samples if sample is not None]

    def render_usable(
        self, rows: Sequence[Row], progress: Callable[[int], None] | None = None
    ) -> tuple[list[Sample | None], Rejected]:
        """Return the sample of each row, None for a row that the chat template cannot write, and these rows."""
        singles = [row for row in rows if not isinstance(row, Pair)]
        if len(singles) < len(rows):
            raise TypeError("pairs are rendered by render_pairs")
        return self._render(singles, self._train_on, progress)

    def render_usable_pairs(
        self, rows: Sequence[Pair], progress: Callable[[int], None] | None = None
    ) -> tuple[list[PairSample | None], Rejected]:
        """Return the samples of each pair, None for one that the chat template cannot write, and these rows."""
        answers = [answer for row in rows for answer in _answers(row)]
        samples, rejected = self._render(answers, "assistant", progress and (lambda rendered: progress(rendered // 2)))
        pairs = zip(samples[::2], samples[1::2], strict=True)
        return [
            PairSample(chosen, rejected_answer) if chosen is not None and rejected_answer is not None else None
            for chosen, rejected_answer in pairs
        ], rejected

    def reasons(self, row: Row) -> list[list[tuple[int, int, str]]]:
        """Return which tokens of answers in a row are not learned, and why; for a pair those of both of its samples.

        Each is the first token, the one after the last, and the reason.
        """
        parts = _answers(row) if isinstance(row, Pair) else [row]
        train_on: TrainOn = "assistant" if isinstance(row, Pair) else self._train_on
        return [self._encoder.reasons(self._written(part, train_on, explains=True)) for part in parts]

    def describe_turns(self, messages: Sequence[Message]) -> str:
        """Return what the chat template makes of messages, to be added to what is wrong with their order."""
        return "; " + templates.describe_end(partial(self._write, None), messages) if self.has_template else ""

    def is_used(self, part: str, messages: Sequence[Message], tools: Tools) -> bool:
        """Return whether a part of a conversation has an effect on what the template writes.

        A part is `tools`, the key of a message, or messages of a role, as `messages of the system`.
        """
        role = part.removeprefix(ROLE_PART)
        changed = [
            {name: value for name, value in message.items() if name != part}
            for message in messages
            if role == part or message["role"] != role
        ]
        try:
            whole = self._write(tools, messages, False)
            return whole != self._write(None if part == "tools" else tools, changed, False)
        except TemplateLimitError:
            raise
        except Exception:  # noqa: BLE001  (a template's code may raise anything; it asks for this part)
            return True

    def converts(self, message: Message) -> str:
        """Return what is changed in a message for the template, for people; empty if it is written as it is."""
        if calls.is_converted(message, as_text=self._takes_text_arguments):
            return ARGUMENTS_AS_TEXT if self._takes_text_arguments else ARGUMENTS_AS_OBJECTS
        if message["role"] == "developer" and not self._knows_developer:
            return DEVELOPER_AS_SYSTEM
        return ""

    def prompt(self, messages: Sequence[Message], tools: Tools = None) -> list[int]:
        """Return the tokens from which the model generates an answer to `messages`.

        Raises DataError if the chat template rejects them, and UsageError if there is none.
        """
        self._require_template()
        try:
            text = self._write(tools, messages, True)
        except TemplateLimitError:
            raise
        except Exception as error:  # a template's code may raise anything
            raise DataError(f"the chat template rejects these messages: {_first_line(error)}") from error
        return self._encoder.prompt(text, by_template=True)

    def prompt_text(self, text: str) -> list[int]:
        """Return the tokens from which the model continues a text."""
        return self._encoder.prompt(text, by_template=False)

    def question(self, text: str) -> list[int]:
        """Return the tokens from which the model answers the text of a prompt. Raises DataError as `prompt` does."""
        return self.prompt([_user(text)]) if self._is_wrapped(text) else self.prompt_text(text)

    def decode(self, tokens: Sequence[int] | NDArray[numpy.int32], skip_special: bool = True) -> str:
        """Return the text of tokens."""
        numbers = [int(token) for token in tokens]
        text = self._tokenizer.decode(numbers, skip_special_tokens=skip_special, clean_up_tokenization_spaces=False)
        return str(text)

    def misplaced_markup(self, row: Row) -> str | None:
        """Return markup of a chat template within a message, to which a template would be applied a second time."""
        for message in _messages(row):
            for text in templates.message_texts(message):
                if match := self._misplaced.search(text):
                    return match[0].strip()
        return None

    def _render(
        self, rows: Sequence[Single], train_on: TrainOn, progress: Callable[[int], None] | None
    ) -> tuple[list[Sample | None], Rejected]:
        samples: list[Sample | None] = []
        rejected = Rejected()  # by place, because a pair is two answers of one place
        start_time = time.process_time()
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            written: list[Written | None] = []
            for row in rows[start : start + _ROWS_AT_ONCE]:
                if _messages(row):
                    self._require_template()
                written.append(None)
                try:
                    written[-1] = self._written(row, train_on)
                except TemplateLimitError:
                    raise
                except templates.PrefixChangedError as error:
                    rejected.changed[row.place] = str(error)
                except Exception as error:  # noqa: BLE001  (a template's code may raise anything)
                    rejected.by_template[row.place] = _first_line(error)
                require_fast(time.process_time() - start_time, start + len(written), len(rows))
            encoded = self._encoder.samples([item for item in written if item])
            samples += [next(encoded) if item else None for item in written]
            if progress:
                progress(min(start + _ROWS_AT_ONCE, len(rows)))
        return samples, rejected

    def is_wrapped(self, row: Row) -> bool:
        """Return whether the row has texts, which are written as messages with the chat template."""
        if isinstance(row, Pair):
            texts: Sequence[Any] = (row.prompt, row.chosen, row.rejected)
        else:
            texts = (row.prompt, row.completion) if isinstance(row, Completion) else ()
        return bool(texts) and all(isinstance(text, str) for text in texts) and self._is_wrapped(*texts)

    def _is_wrapped(self, prompt: str, *answers: str) -> bool:
        if not self._as_chat or not prompt.strip():
            return False
        return not any(self._misplaced.search(text) for text in (prompt, *answers))

    def _written(self, row: Single, train_on: TrainOn, *, explains: bool = False) -> Written:
        """Return a row as text; with `explains`, also why answers in it are not learned."""
        if isinstance(row, Text):
            return Written(text=row.text, loss_mask=None, by_template=False)
        if isinstance(row, Completion) and self.is_wrapped(row):
            answer = {"role": "assistant", "content": str(row.completion).strip()}
            return self._conversation((_user(str(row.prompt)), answer), row.tools, 1, train_on, explains)
        if isinstance(row, Conversation):
            return self._conversation(row.messages, row.tools, 0, train_on, explains)
        if not isinstance(row.prompt, str) and not isinstance(row.completion, str):
            messages = (*row.prompt, *row.completion)
            return self._conversation(messages, row.tools, len(row.prompt), train_on, explains)
        text = f"{row.prompt}{row.completion}"
        completion = (len(row.prompt), len(text))
        return Written(text=text, loss_mask=None if train_on == "all" else [completion], by_template=False)

    def _conversation(
        self, messages: Sequence[Message], tools: Tools, first: int, train_on: TrainOn, explains: bool
    ) -> Written:
        """Return a conversation of whose messages those from `first` on may be learned."""
        write = partial(self._write, tools)
        answers = [turn for turn in range(len(messages)) if messages[turn]["role"] == "assistant"]
        reasons = {
            turn: reason for turn in answers if (reason := learned.why_not(messages, turn, answers, first, train_on))
        }
        trained = [turn for turn in answers if turn not in reasons]
        template = self._chat_template(tools)
        spans: Sequence[templates.Span] | None = None
        if train_on == "all":
            whole = write(messages, False)
            if reasons or any(marks.loss_ranges(messages[turn]) is not None for turn in answers):
                spans = learned.all_but_excluded(write, self._markup, messages, answers, trained, whole)
        elif templates.has_generation(template):
            marked = self._apply(messages, tools, templates.with_marks(template), add_generation_prompt=False)
            whole, spans = templates.split_marks(marked)
            spans = learned.spans_of_turns(write, messages, answers, trained, whole, spans)
        else:
            whole = write(messages, False)
            answer_spans = templates.find_answers(write, messages, trained, whole, self._markup)
            spans = learned.without_excluded(messages, trained, whole, answer_spans)
        templates.require_contents(messages, trained, whole)
        explained = learned.explain(write, self._markup, messages, reasons, whole) if explains else ()
        return Written(text=whole, loss_mask=spans, by_template=True, reasons=explained)

    def _require_template(self) -> None:
        if not self.has_template:
            raise UsageError(
                "the tokenizer has no chat template, which messages need",
                hint="name one: --set template=FILE; or use rows with text, or with prompt and completion as texts",
            )

    def _chat_template(self, tools: Tools) -> str:
        template = self._template or self._tokenizer.get_chat_template(tools=tools or None)
        return templates.with_fixed_date(template)

    def _write(self, tools: Tools, messages: Sequence[Message], generation_prompt: bool) -> str:
        return self._apply(messages, tools, self._chat_template(tools), add_generation_prompt=generation_prompt)

    def _apply(self, messages: Sequence[Message], tools: Tools, template: str, *, add_generation_prompt: bool) -> str:
        prepared = [self._prepared(message) for message in messages]
        return rendered(
            lambda: self._tokenizer.apply_chat_template(
                prepared,
                tools=[dict(tool) for tool in tools] if tools else None,
                chat_template=template,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
            )
        )

    def _prepared(self, message: Message) -> dict[str, Any]:
        """Return a message as the template needs it."""
        prepared = {name: value for name, value in message.items() if value is not None and name not in marks.KEYS}
        prepared.setdefault("content", "")
        if message["role"] == "developer" and not self._knows_developer:
            prepared["role"] = "system"
        if "tool_calls" in prepared:
            tool_calls = calls.parse_calls(prepared["tool_calls"], "a message")
            prepared["tool_calls"] = calls.with_arguments(tool_calls, as_text=self._takes_text_arguments)
        return prepared

    @cached_property
    def _takes_text_arguments(self) -> bool:
        def write(messages: Sequence[Message], _: bool) -> str:
            return rendered(
                lambda: self._tokenizer.apply_chat_template(
                    messages, tools=[_TOOL], chat_template=self._chat_template([_TOOL]), tokenize=False
                )
            )

        return templates.needs_text_arguments(write)

    @cached_property
    def _knows_developer(self) -> bool:
        return "developer" in self._chat_template(None)


def _answers(row: Pair) -> list[Completion]:
    return [
        Completion(place=row.place, prompt=row.prompt, completion=completion, tools=row.tools)
        for completion in (row.chosen, row.rejected)
    ]


def _user(text: str) -> Message:
    return {"role": "user", "content": text.strip()}


def _messages(row: Row) -> Sequence[Message]:
    if isinstance(row, Text):
        return ()
    if isinstance(row, Conversation):
        return row.messages
    parts = (row.prompt, row.chosen, row.rejected) if isinstance(row, Pair) else (row.prompt, row.completion)
    return [message for part in parts if not isinstance(part, str) for message in part]


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
