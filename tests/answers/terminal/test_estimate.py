"""The verdict of an estimate says what decides it where the numbers do not."""

from types import SimpleNamespace

import pytest

from shoestring.answers.terminal.estimate import _verdict


@pytest.mark.parametrize(
    ("fits", "loading", "peak", "text"),
    [
        (True, 5, 10, "fits"),
        (False, 5, 20, "does not fit"),
        (False, 18, 20, "does not fit: the model does not fit while it is loaded"),
        (False, 5, 10, "does not fit: the high end of the range decides; shoestring plan finds settings that fit"),
    ],
)
def test_verdict(fits, loading, peak, text):
    memory = SimpleNamespace(fits=fits, peak_bytes=peak, loading_bytes=loading, capacity_bytes=16)
    assert _verdict(SimpleNamespace(memory=memory)).plain == text
