"""Rendering: from a row to the tokens that the model receives, with a mark on each token that is learned.

In conversations the assistant's turns are learned: what the chat template marks with `{% generation %}`, or if it has
no such marks, what it writes after the prompt of each turn. A conversation is always divided into tokens as a whole,
because the tokens of its parts may differ at their boundaries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from shoestring.base.errors import DataError, UsageError
from shoestring.base.units import count_text
from shoestring_recipes.finetune import templates
from shoestring_recipes.finetune.encoding import Encoder, Written
from shoestring_recipes.finetune.rows import Completion, Conversation, Message, Pair, Row, Text
from shoestring_recipes.finetune.samples import PairSample, Sample
from shoestring_recipes.rows import MAX_LISTED

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

TrainOn: TypeAlias = Literal["assistant", "completion", "all"]
Tools: TypeAlias = Sequence[Mapping[str, Any]] | None
Single: TypeAlias = Conversation | Completion | Text

_ROWS_AT_ONCE = 256


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
        conversation differently when more messages follow; and UsageError if there is no template for conversations.
        """
        singles = [row for row in rows if not isinstance(row, Pair)]
        if len(singles) < len(rows):
            raise TypeError("pairs are rendered by render_pairs")
        return self._render(singles, self._train_on, progress)

    def render_pairs(self, rows: Sequence[Pair], progress: Callable[[int], None] | None = None) -> list[PairSample]:
        """Return the samples of pairs, of which the answers alone are learned. Raises as `render_all` does."""
        answers = [
            Completion(place=row.place, prompt=row.prompt, completion=completion, tools=row.tools)
            for row in rows
            for completion in (row.chosen, row.rejected)
        ]
        samples = self._render(answers, "assistant", progress and (lambda rendered: progress(rendered // 2)))
        return [PairSample(*pair) for pair in zip(samples[::2], samples[1::2], strict=True)]

    def prompt(self, messages: Sequence[Message], tools: Tools = None) -> list[int]:
        """Return the tokens from which the model generates an answer to `messages`.

        Raises DataError if the chat template rejects them, and UsageError if there is none.
        """
        self._require_template()
        try:
            text = self._write(tools, messages, True)
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
    ) -> list[Sample]:
        samples: list[Sample] = []
        rejected: dict[str, str] = {}  # by place, because a pair is two answers of one place
        changed: dict[str, str] = {}
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            written: list[Written] = []
            for row in rows[start : start + _ROWS_AT_ONCE]:
                if _messages(row):
                    self._require_template()
                try:
                    written.append(self._written(row, train_on))
                except templates.PrefixChangedError as error:
                    changed[row.place] = str(error)
                except Exception as error:  # noqa: BLE001  (a template's code may raise anything)
                    rejected[row.place] = _first_line(error)
            samples += self._encoder.samples(written)
            if progress:
                progress(min(start + _ROWS_AT_ONCE, len(rows)))
        count = count_text(len({row.place for row in rows}))
        if rejected:
            raise DataError(
                f"the chat template rejects {count_text(len(rejected))} of {count} rows",
                problems=_listed(rejected),
                hint="correct these rows, or use another template: --set template=FILE",
            )
        if changed:
            raise DataError(
                f"the chat template changes its own prefix in {count_text(len(changed))} of {count} "
                "rows: the model would learn to answer prompts that it never receives",
                problems=_listed(changed),
                hint="use a template that writes each prompt as in the whole conversation, such as those for training "
                "that TRL has: --set template=FILE; or, if answers before the last are concerned, learn the last "
                "alone: --set train_on=completion",
            )
        return samples

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

    def _written(self, row: Single, train_on: TrainOn) -> Written:
        if isinstance(row, Text):
            return Written(text=row.text, loss_mask=None, by_template=False)
        if isinstance(row, Completion) and self.is_wrapped(row):
            answer = {"role": "assistant", "content": str(row.completion).strip()}
            return self._conversation((_user(str(row.prompt)), answer), row.tools, 1, train_on)
        if isinstance(row, Conversation):
            return self._conversation(row.messages, row.tools, 0, train_on)
        if not isinstance(row.prompt, str) and not isinstance(row.completion, str):
            return self._conversation((*row.prompt, *row.completion), row.tools, len(row.prompt), train_on)
        text = f"{row.prompt}{row.completion}"
        completion = (len(row.prompt), len(text))
        return Written(text=text, loss_mask=None if train_on == "all" else [completion], by_template=False)

    def _conversation(self, messages: Sequence[Message], tools: Tools, first: int, train_on: TrainOn) -> Written:
        """Return a conversation of whose messages those from `first` on may be learned."""
        write = partial(self._write, tools)
        # Before the first message there is no prompt, so an answer there is not learned by itself.
        answers = [turn for turn in range(1, len(messages)) if messages[turn]["role"] == "assistant"]
        loss_mask = answers if train_on == "all" else [turn for turn in answers if turn >= first]
        if train_on == "completion":
            loss_mask = loss_mask[-1:]
        template = self._chat_template(tools)
        spans: Sequence[templates.Span] | None = None
        if train_on == "all":
            whole = write(messages, False)
        elif templates.has_generation(template):
            marked = self._apply(messages, tools, templates.with_marks(template), add_generation_prompt=False)
            whole, spans = templates.split_marks(marked)
            starts = [templates.find_start(write, messages, turn, whole) for turn in loss_mask]
            if loss_mask != answers:
                start = min(starts, default=len(whole))
                spans = [(max(span[0], start), span[1]) for span in spans if span[1] > start]
        else:
            whole = write(messages, False)
            spans = templates.find_answers(write, messages, loss_mask, whole, self._markup)
        templates.require_contents(messages, loss_mask, whole)
        return Written(text=whole, loss_mask=spans, by_template=True)

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
        text = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=[dict(tool) for tool in tools] if tools else None,
            chat_template=template,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
        )
        return str(text)


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


def _listed(problems: Mapping[str, str]) -> list[str]:
    listed = [f"{place}: {problem}" for place, problem in problems.items()][:MAX_LISTED]
    unlisted = len(problems) - len(listed)
    return [*listed, *([f"and {count_text(unlisted)} more"] if unlisted else [])]
