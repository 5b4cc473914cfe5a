"""Leaving out rows with a prompt of more than `prompt_len` tokens, the length that estimates are made for.

TRL has no such limit any more. The guide's `max_prompt_length` of 4,096 cut the beginning of longer prompts, which are
those of its system message; here a prompt is never cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shoestring.base.errors import DataError
from shoestring.base.units import count_text
from shoestring_recipes.chart.options import IMAGE_TOKENS
from shoestring_recipes.template_limits import rendered

if TYPE_CHECKING:
    from shoestring_recipes.chart.data import Charts
    from shoestring_recipes.chart.options import Options

_MAX_LISTED = 5


def without_long_prompts(parts: Mapping[str, Charts], tokenizer: Any, options: Options) -> dict[str, Charts]:
    """Return the parts without the rows whose prompts are too long, and a note on them.

    Synthetic charts with a tokenizer that was trained on them are no data of anyone, and stay.

    Raises DataError if there are any, unless unusable rows are skipped and some of each part are left.
    """
    lengths = {name: prompt_lengths(charts, tokenizer, IMAGE_TOKENS[options.size]) for name, charts in parts.items()}
    longest, limit = max(max(values) for values in lengths.values()), options.prompt_len
    if longest <= limit:
        return dict(parts)
    rows = {
        name: [row for row, length in zip(charts.rows, lengths[name], strict=True) if length <= limit]
        for name, charts in parts.items()
    }
    count, total = sum(map(len, parts.values())) - sum(map(len, rows.values())), sum(map(len, parts.values()))
    message = (
        f"{count_text(count)} of {count_text(total)} prompts have more than prompt_len={limit} tokens; the longest has "
        f"{longest}"
    )
    first_notes = next(iter(parts.values())).notes
    if options.data is None and options.weights_from is None:
        notes = [*first_notes, f"{message}: estimates do not count the rest"]
        return {name: replace(charts, notes=notes) for name, charts in parts.items()}
    if options.on_bad_rows != "skip" or not all(rows.values()):
        problems = [
            f"{name}, row {row.id}: {length} tokens"
            for name, charts in parts.items()
            for row, length in zip(charts.rows, lengths[name], strict=True)
            if length > limit
        ]
        unlisted = len(problems) - _MAX_LISTED
        listed = [*problems[:_MAX_LISTED], *([f"and {count_text(unlisted)} more"] if unlisted > 0 else [])]
        hint = f"--set prompt_len={longest}, or leave these rows out: --set on_bad_rows=skip"
        raise DataError(message, problems=listed, hint=hint)
    notes = [*first_notes, f"{message}; these rows were skipped (on_bad_rows=skip)"]
    return {name: replace(charts, rows=rows[name], notes=notes) for name, charts in parts.items()}


def prompt_lengths(charts: Charts, tokenizer: Any, image_tokens: int) -> list[int]:
    """Return the number of tokens of each row's prompt, if its image has `image_tokens`, the most that it can have.

    The question is between tokens of its own, so it can be counted apart from the rest of the prompt.
    """
    from shoestring_recipes.chart.processing import template_of
    from shoestring_recipes.chart.training import conversation

    row = {"prompt": charts.presentation.messages(""), "image": None}
    frame = rendered(
        lambda: tokenizer.apply_chat_template(
            conversation(row), chat_template=template_of(tokenizer), add_generation_prompt=True, tokenize=False
        )
    )
    fixed = (
        len(tokenizer(frame, add_special_tokens=False)["input_ids"]) + image_tokens - 1
    )  # the template has one token for the image
    questions = tokenizer([chart.query for chart in charts.rows], add_special_tokens=False)["input_ids"]
    return [fixed + len(question) for question in questions]
