"""Tensors of two ranks are added in few messages, whatever their sizes, layouts and types."""

import torch

from shoestring.base.units import MIB
from shoestring.techniques.buckets import split_by_size
from shoestring.training.engine.parallel.buckets import Buckets
from shoestring.training.engine.parallel.ranks import Ranks
from tests.ranks import run_ranks


def tensors_of(rank):
    generator = torch.Generator().manual_seed(rank)
    shapes = [(5,), (3, 4), (600, 500), (2, 64, 64, 64), (0,)]
    tensors = [torch.randn(shape, generator=generator) for shape in shapes]
    tensors[2] = tensors[2].t()
    tensors[3] = tensors[3].to(memory_format=torch.channels_last)
    return [*tensors, *(tensor.bfloat16() for tensor in tensors)]


class Counting(Ranks):
    def add(self, *tensors):
        sizes.extend(tensor.nbytes for tensor in tensors)
        super().add(*tensors)


sizes = []


def test_large_tensors_are_sent_as_they_are(tmp_path):
    def act(rank):
        tensors = tensors_of(rank)
        addresses = [tensor.data_ptr() for tensor in tensors]
        buckets = Buckets(torch.device("cpu"), Counting.join())
        buckets.allocate(tensors)
        buckets.add(tensors)
        for tensor, first, second in zip(tensors, tensors_of(0), tensors_of(1), strict=True):
            assert torch.equal(tensor, first + second)
        assert [tensor.data_ptr() for tensor in tensors] == addresses
        # Three tensors of 1 MiB and more, and one message for the others of each type.
        assert sizes == [600 * 500 * 4, 2 * 64**3 * 4, 2 * 64**3 * 2, 17 * 4, (600 * 500 + 17) * 2]

    assert run_ranks(2, act, tmp_path) == [0, 0]


def test_messages_are_in_the_order_of_their_last_tensors():
    large = torch.empty(8 * MIB)
    small, other = torch.empty(MIB // 5), torch.empty(MIB // 5, dtype=torch.float64)
    buckets = Buckets(torch.device("cuda"), Ranks(size=2))
    # A bucket has room for 31 small tensors.
    tensors = [other, *[small] * 30, large, *[small] * 2, other, large]
    messages = buckets.messages(tensors)
    assert messages == [[31], [*range(1, 31), 32], [33], [0, 34], [35]]


def test_size_of_a_message_depends_on_the_device():
    tensors = [torch.empty(size, dtype=torch.uint8) for size in (MIB - 1, MIB, 10 * MIB)]
    assert [len(large) for large, _ in (split_by_size(tensors, kind) for kind in ("cpu", "cuda", "xpu"))] == [2, 1, 0]
