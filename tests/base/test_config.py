from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest

from shoestring.base import config
from shoestring.base.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ExampleOptions:
    epochs: Annotated[int, "passes"] = 3
    rate: float = 0.5
    fast: bool = False
    size: Literal["full", "tiny"] = "full"
    data: Path | None = None
    source: Path | str | None = None
    limit: float | None = None
    precision: Literal["fp32", "fp16"] | None = None
    hidden: list[int] = field(default_factory=list, init=False)


FIELDS = config.fields(ExampleOptions)


def test_field_has_default_choices_and_help():
    assert list(FIELDS) == ["epochs", "rate", "fast", "size", "data", "source", "limit", "precision"]
    assert (FIELDS["epochs"].default, FIELDS["epochs"].help) == (3, "passes")
    assert FIELDS["size"].expected() == "one of full, tiny"
    assert FIELDS["epochs"].expected() == "an integer"
    assert not FIELDS["epochs"].optional
    assert FIELDS["limit"].optional


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("epochs", "7", 7),
        ("rate", "1e-3", 1e-3),
        ("rate", 2, 2.0),
        ("fast", "yes", True),
        ("fast", "False", False),
        ("size", "tiny", "tiny"),
        ("data", "bars.csv", Path.cwd() / "bars.csv"),
        ("data", "none", None),
        ("source", "owner/model", "owner/model"),
        ("source", "./owner/model", Path.cwd() / "owner/model"),
        ("source", "src/shoestring", Path.cwd() / "src/shoestring"),
        ("source", "none", None),
        ("limit", None, None),
        ("limit", "2.5", 2.5),
        ("precision", "fp16", "fp16"),
        ("precision", "None", None),
    ],
)
def test_value_is_converted_to_the_type_of_its_field(key, text, value):
    values = config.read({key: text}, FIELDS, "options")
    assert values == {key: value}
    assert type(values[key]) is type(value)


def test_all_problems_are_reported_with_suggestions():
    invalid = {"epoch": "3", "rate": "fast", "fast": "maybe", "size": "huge", "epochs": "7.5", "precision": "fp8"}
    with pytest.raises(UsageError) as error:
        config.read(invalid, FIELDS, "options")
    assert error.value.problems == (
        "epoch: unknown; did you mean epochs?",
        "rate=fast: expected a number",
        "fast=maybe: expected true or false",
        "size=huge: expected one of full, tiny",
        "epochs=7.5: expected an integer",
        "precision=fp8: expected one of fp32, fp16 or none",
    )


@pytest.mark.parametrize(("key", "value"), [("epochs", True), ("epochs", 2.0), ("epochs", None), ("fast", 1)])
def test_python_value_of_another_type_is_refused(key, value):
    with pytest.raises(UsageError):
        config.read({key: value}, FIELDS, "options")


def test_pairs_are_split_at_the_first_equals_sign():
    assert config.parse_pairs(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}


def test_malformed_and_repeated_pairs_are_refused():
    with pytest.raises(UsageError) as error:
        config.parse_pairs(["epochs", "=3", "a=1", "a=2"])
    assert len(error.value.problems) == 3


def test_path_is_stored_as_text_in_json():
    values = {"data": Path("/data/bars.csv"), "epochs": 3}
    assert config.as_json(values) == {"data": "/data/bars.csv", "epochs": 3}
    assert config.read(config.as_json(values), FIELDS, "options") == values
