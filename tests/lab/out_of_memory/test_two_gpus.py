"""Memory runs out on one of two GPUs, or on both; a case takes seconds."""

import pytest

from .campaign import CONTINUED, SAME
from .injection import ALWAYS
from .ranks import start


@pytest.mark.parametrize(
    ("every", "counts"), [(600, [1]), pytest.param(60, [1, 2, ALWAYS], marks=pytest.mark.slow)], ids=["some", "more"]
)
def test_requests_fail_on_two_gpus(tmp_path, every, counts):
    cases = start(tmp_path, every, seconds=1200, counts=counts)
    assert {case["where"] for case in cases} == {"first", "second", "both"}
    assert [case for case in cases if case["outcome"] not in (SAME, CONTINUED)] == []
