"""A light checkpoint holds the weights; a full one also holds the optimizer states alive at the end."""

from dataclasses import replace

from shoestring.planning.estimate.disk import checkpoint_bytes
from shoestring.planning.trace.record import Alloc, Free
from tests.planning.estimate.example_traces import TRAINING, trace


def test_full_checkpoint_adds_the_optimizer_states() -> None:
    size = checkpoint_bytes(TRAINING)
    assert size.full - size.light == 8000
    assert 4000 <= size.light < 4000 + 2**20


def test_offloaded_states_are_saved_as_well() -> None:
    offloaded = trace([(500, "averaged weights")], [Alloc(0)])
    sizes = {"weights": 1000, "optimizer states": 2000}
    size = checkpoint_bytes(replace(offloaded, host_bytes=sizes), shares=2)
    assert size.full - size.light == 2 * (500 + 2000)


def test_shares_of_the_states_are_added() -> None:
    size = checkpoint_bytes(TRAINING, shares=4)
    assert size.full - size.light == 4 * 8000


def test_replaced_states_count_once() -> None:
    replaced = trace([(500, "optimizer states"), (500, "optimizer states")], [Alloc(0), Alloc(1), Free(0)])
    size = checkpoint_bytes(replaced)
    assert size.full - size.light == 500
