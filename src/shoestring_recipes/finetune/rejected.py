"""Rows that a chat template cannot write, and the error that lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoestring.base.errors import DataError
from shoestring.base.units import count_text
from shoestring_recipes.rows import MAX_LISTED


@dataclass(frozen=True)
class Rejected:
    """Rows that a chat template cannot write, by place, each with the reason."""

    by_template: dict[str, str] = field(default_factory=dict)
    changed: dict[str, str] = field(default_factory=dict)
    """Rows of which the template writes the beginning differently when more messages follow."""

    @property
    def places(self) -> dict[str, str]:
        return {**self.by_template, **self.changed}


def require_none(rejected: Rejected, count: int) -> None:
    """Raise DataError if there are rows that the template cannot write."""
    if rejected.by_template:
        raise DataError(
            f"the chat template rejects {count_text(len(rejected.by_template))} of {count_text(count)} rows",
            problems=_listed(rejected.by_template),
            hint="correct these rows, skip them: --set on_bad_rows=skip, or use another template: --set template=FILE",
        )
    if rejected.changed:
        raise DataError(
            f"the chat template changes its own prefix in {count_text(len(rejected.changed))} of {count_text(count)} "
            "rows: the model would learn to answer prompts that it never receives",
            problems=_listed(rejected.changed),
            hint="use a template that writes each prompt as in the whole conversation, such as those for training "
            "that TRL has: --set template=FILE; or, if answers before the last are concerned, learn the last "
            "alone: --set train_on=completion",
        )


def _listed(problems: Mapping[str, str]) -> list[str]:
    listed = [f"{place}: {problem}" for place, problem in problems.items()][:MAX_LISTED]
    unlisted = len(problems) - len(listed)
    return [*listed, *([f"and {count_text(unlisted)} more"] if unlisted else [])]
