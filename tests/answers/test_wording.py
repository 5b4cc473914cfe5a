"""The words for a model and its device."""

from types import SimpleNamespace

import pytest

from shoestring.answers.wording import model_text


@pytest.mark.parametrize(
    ("trainable", "random_parts", "text"),
    [
        (2_000_000, (), "2,000,000 parameters"),
        (5_000, (), "2,000,000 parameters, 5,000 of them trained (0.25%)"),
        (2_000_000, ("vision", "text"), "2,000,000 parameters; not pretrained: vision, text"),
    ],
)
def test_parameters_that_are_not_trained_are_told_apart(trainable, random_parts, text):
    facts = SimpleNamespace(parameters_total=2_000_000, parameters_trainable=trainable, random_parts=random_parts)
    assert model_text(facts) == text
