"""The GPUs of a run beside each other."""

import re

import pytest

from shoestring.training.monitor.gpus import describe_slowest, gpu_times


def progress(session, *ranks):
    names = ("memory_bytes", "exchange_seconds", "waiting_seconds", "input_seconds")
    reported = [dict(zip(names, rank, strict=True)) for rank in ranks]
    return {"event": "progress", "session": session, "seconds": 10.0, "ranks": reported}


def test_times_are_those_of_the_last_session_with_several_gpus():
    events = [progress(1, (9, 9.0, 9.0, 9.0)), *[progress(2, (5, 1.0, 2.0, 0.5), (7, 1.0, 0.0, 2.5))] * 2]
    first, second = gpu_times([*events, {"event": "progress", "session": 3, "seconds": 1.0}])
    assert (first.memory_bytes, first.updating, first.exchange, first.waiting, first.input) == (5, 20.0, 2.0, 4.0, 1.0)
    assert (second.memory_bytes, second.waiting, second.input) == (7, 0.0, 5.0)
    assert gpu_times(events[:1]) == []


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (((1, 1.0, 0.2, 0.0), (1, 1.0, 0.0, 0.0)), "equally fast"),
        (((1, 1.0, 0.0, 0.1), (1, 1.0, 3.0, 0.0)), "GPU 0 is the slowest: .* 30% of the time, because its computation"),
        (
            ((1, 1.0, 2.0, 0.0), (1, 1.0, 0.0, 1.9)),
            "GPU 1 is the slowest: .* 20% of the time, because it waits for its",
        ),
    ],
)
def test_slowest_gpu_is_named_with_the_reason(ranks, words):
    assert re.search(words, describe_slowest(gpu_times([progress(1, *ranks)])))
