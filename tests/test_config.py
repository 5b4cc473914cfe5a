from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest

from shoestring import config
from shoestring.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Wishes:
    epochs: Annotated[int, "passes"] = 3
    rate: float = 0.5
    fast: bool = False
    size: Literal["full", "tiny"] = "full"
    data: Path | None = None
    limit: float | None = None
    precision: Literal["fp32", "fp16"] | None = None
    hidden: list[int] = field(default_factory=list, init=False)


WISHES = config.fields(Wishes)


def test_a_field_tells_its_default_choices_and_help():
    assert list(WISHES) == ["epochs", "rate", "fast", "size", "data", "limit", "precision"]
    assert (WISHES["epochs"].default, WISHES["epochs"].help) == (3, "passes")
    assert WISHES["size"].expected() == "one of full, tiny"
    assert WISHES["epochs"].expected() == "a whole number"
    assert not WISHES["epochs"].optional
    assert WISHES["limit"].optional


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
        ("limit", None, None),
        ("limit", "2.5", 2.5),
        ("precision", "fp16", "fp16"),
        ("precision", "None", None),
    ],
)
def test_a_value_takes_its_fields_type(key, text, value):
    read = config.read({key: text}, WISHES, "wishes")
    assert read == {key: value}
    assert type(read[key]) is type(value)


def test_every_problem_is_told_at_once_with_the_nearest_name():
    wrong = {"epoch": "3", "rate": "fast", "fast": "maybe", "size": "huge", "epochs": "7.5", "precision": "fp8"}
    with pytest.raises(UsageError) as caught:
        config.read(wrong, WISHES, "wishes")
    assert caught.value.problems == (
        "epoch: unknown; did you mean epochs?",
        "rate=fast: expected a number",
        "fast=maybe: expected true or false",
        "size=huge: expected one of full, tiny",
        "epochs=7.5: expected a whole number",
        "precision=fp8: expected one of fp32, fp16",
    )


@pytest.mark.parametrize(("key", "value"), [("epochs", True), ("epochs", 2.0), ("epochs", None), ("fast", 1)])
def test_a_python_value_of_another_type_is_not_bent(key, value):
    with pytest.raises(UsageError):
        config.read({key: value}, WISHES, "wishes")


def test_pairs_are_split_at_the_first_equals_sign():
    assert config.parse_pairs(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}


def test_what_is_no_pair_or_set_twice_is_refused():
    with pytest.raises(UsageError) as caught:
        config.parse_pairs(["epochs", "=3", "a=1", "a=2"])
    assert len(caught.value.problems) == 3


def test_as_json_a_path_is_a_text_that_reads_back():
    values = {"data": Path("/data/bars.csv"), "epochs": 3}
    assert config.as_json(values) == {"data": "/data/bars.csv", "epochs": 3}
    assert config.read(config.as_json(values), WISHES, "wishes") == values
