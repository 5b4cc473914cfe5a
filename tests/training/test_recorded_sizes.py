"""The microbatch of each update is that of its last execution."""

from shoestring.training.recorded_sizes import RecordedSizes


def session(update, micro_batch):
    return {"event": "session", "update": update, "micro_batch": micro_batch}


def out_of_memory(update, done, **fields):
    return {"event": "oom", "during": "update", "update": update, "done": done, **fields}


def sizes(*events, updates=6):
    recorded = RecordedSizes([{"event": "progress", "update": 3}, *events])
    return [recorded.micro_batch(update) for update in range(updates)]


def test_sizes_follow_sessions_and_fallbacks():
    first, smaller = session(0, 8), out_of_memory(2, "microbatch 4")
    assert sizes() == [None] * 6
    assert sizes(first, smaller) == [8, 8, 4, 4, 4, 4]
    assert sizes(first, smaller, session(1, 8), out_of_memory(4, "microbatch 4")) == [8, 8, 8, 8, 4, 4]
    assert sizes(first, smaller, out_of_memory(5, "microbatch 2", back_to=3)) == [8, 8, 4, 2, 2, 2]
    assert sizes(first, smaller, out_of_memory(3, "microbatch 2", during="evaluation")) == [8, 8, 4, 4, 4, 4]
    assert sizes(first, out_of_memory(2, "the optimizer updates one tensor at a time")) == [8] * 6
    assert sizes(session(0, "8"), session(3, -1), session(None, 2)) == [None] * 6
