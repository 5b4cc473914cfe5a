"""The verdict of an estimate says what decides it where the numbers do not."""

from types import SimpleNamespace

import pytest

from shoestring.report.terminal.estimate import _verdict


@pytest.mark.parametrize(
    ("fits", "peak", "text"),
    [
        (True, 10, "fits"),
        (False, 20, "does not fit"),
        (False, 10, "does not fit: the high end of the range decides; shoestring plan finds settings that fit"),
    ],
)
def test_verdict(fits, peak, text):
    memory = SimpleNamespace(fits=fits, peak_bytes=peak, capacity_bytes=16)
    assert _verdict(SimpleNamespace(memory=memory)).plain == text
