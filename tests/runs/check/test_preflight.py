"""A check tells what the recipe says about its data, once."""

from types import SimpleNamespace
from typing import Any

import pytest

from shoestring.base.errors import DataError
from shoestring.runs.check.preflight import _preview


def loaded(preview: Any, *notes: str) -> Any:
    return SimpleNamespace(parts=SimpleNamespace(data=SimpleNamespace(preview=preview, notes=lambda: notes)))


def refuse() -> str:
    raise DataError("no data")


@pytest.mark.parametrize(
    ("preview", "expected"),
    [
        (lambda: "a row\nnote: first", ("a row\nnote: first", ("second",))),
        (None, ("", ("first", "second"))),
        (refuse, ("", ())),
    ],
)
def test_notes_that_the_preview_has_not_are_told(preview: Any, expected: Any) -> None:
    assert _preview(loaded(preview, "first", "second")) == expected
