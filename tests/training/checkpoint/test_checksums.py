import pytest
import torch

from shoestring.training.checkpoint.checksums import checksums

MANY = torch.arange(20_003, dtype=torch.int32)


def test_equal_bits_have_equal_checksums():
    shifted = torch.arange(19_999, 20_003, dtype=torch.int32)
    assert checksums([MANY, MANY.clone(), MANY[-4:], shifted]) == [*checksums([MANY]) * 2, *checksums([shifted]) * 2]
    assert checksums([]) == []


@pytest.mark.parametrize("index", [0, 1, 19_000, 20_001, 20_002])
def test_another_value_or_order_has_another_checksum(index):
    changed = MANY.clone()
    changed[index] += 1
    moved = torch.cat([MANY[1024:2048], MANY[:1024], MANY[2048:]])
    assert len({*checksums([MANY, changed, moved])}) == 3


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.bfloat16, torch.float64, torch.complex64, torch.float8_e4m3fn]
)
def test_tensors_of_any_type_and_layout_have_a_checksum(dtype):
    ones = torch.ones(3, 5).to(dtype)
    values = checksums([ones, ones.t(), torch.ones(()).to(dtype), ones[:0]])
    assert values[0] == values[1] and values[3] == 0
