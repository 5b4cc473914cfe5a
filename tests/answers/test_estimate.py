"""The verdict of an estimate says what decides it where the numbers do not."""

from types import SimpleNamespace

import pytest

from shoestring.answers.estimate import _reason


@pytest.mark.parametrize(
    ("fits", "loading", "peak", "text"),
    [
        (True, 5, 10, ""),
        (False, 5, 20, ""),
        (False, 18, 20, "the model does not fit while it is loaded"),
        (False, 5, 10, "the high end of the range decides; shoestring plan finds settings that fit"),
    ],
)
def test_verdict(fits, loading, peak, text):
    memory = SimpleNamespace(fits=fits, peak_bytes=peak, loading_bytes=loading, capacity_bytes=16)
    assert _reason(SimpleNamespace(memory=memory)) == text
