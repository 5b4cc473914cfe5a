"""A checkpoint holds the weights, and to resume exactly also the optimizer's states that live at the end."""

from shoestring.estimate import checkpoint_bytes
from shoestring.trace.record import Alloc, Free
from tests.estimate.handmade_traces import TRAINING, trace


def test_full_is_light_and_the_states() -> None:
    size = checkpoint_bytes(TRAINING)
    assert size.full - size.light == 8000
    assert 4000 <= size.light < 4000 + 2**20


def test_states_that_were_replaced_count_once() -> None:
    replaced = trace([(500, "optimizer states"), (500, "optimizer states")], [Alloc(0), Alloc(1), Free(0)])
    size = checkpoint_bytes(replaced)
    assert size.full - size.light == 500
