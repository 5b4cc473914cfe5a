import pytest
import torch
from torch import nn

from shoestring.base.errors import UsageError
from shoestring.techniques import memory_format
from shoestring.training.data.batches import to_device

CPU = torch.device("cpu")


def is_channels_last(tensor):
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def test_weights_are_those_of_torch():
    """Of four dimensions; tied ones stay tied, and trained ones stay the same parameters."""
    model = nn.ModuleDict({"first": nn.Conv2d(3, 4, 3), "volume": nn.Conv3d(2, 3, 2), "line": nn.Conv1d(2, 3, 2)})
    model["second"] = nn.Conv2d(3, 4, 3)
    model["second"].weight = model["first"].weight
    model["first"].register_buffer("blur", torch.rand(2, 2, 3, 3))
    model["first"].register_buffer("mask", torch.ones(2, 2, 3, 3, dtype=torch.uint8))
    parameters, values = list(model.parameters()), {name: tensor.clone() for name, tensor in model.state_dict().items()}
    memory_format.apply(model, "contiguous")
    assert all(tensor.is_contiguous() for tensor in model.state_dict().values())
    memory_format.apply(model, "channels_last")
    assert all(now is before for now, before in zip(model.parameters(), parameters, strict=True))
    assert model["second"].weight is model["first"].weight
    converted = {name for name, tensor in model.state_dict().items() if is_channels_last(tensor)}
    assert converted == {"first.weight", "second.weight", "first.blur"}
    assert all(torch.equal(tensor, values[name]) for name, tensor in model.state_dict().items())


def test_images_of_a_batch_are_converted():
    floats, others = torch.rand(2, 3, 4, 5), torch.ones(2, 3, 4, 5, dtype=torch.int64)
    batch = {"images": [floats, (floats * 255).byte()], "masks": others, "labels": torch.ones(2), "name": "x"}
    moved = to_device(batch, CPU, "channels_last")
    assert all(map(is_channels_last, moved["images"]))
    assert is_channels_last(moved["images"][1].float())
    assert torch.equal(moved["images"][0], floats)
    assert moved["masks"] is others
    assert all(tensor.is_contiguous() for tensor in to_device(batch, CPU)["images"])


def test_a_view_that_the_format_does_not_permit_is_explained():
    images = torch.ones(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    with pytest.raises(UsageError, match=r"a view of a tensor at .*test_memory_format.py:\d+ in ") as error:  # noqa: SIM117
        with memory_format.explaining_views("channels_last"):
            images.view(2, -1)
    assert "call reshape instead of view" in (error.value.hint or "")
    with pytest.raises(RuntimeError, match="view size"), memory_format.explaining_views("contiguous"):
        images.view(2, -1)
    with pytest.raises(ValueError, match="other"), memory_format.explaining_views("channels_last"):
        raise ValueError("other")


def test_an_evaluation_copies_where_a_view_is_not_permitted():
    images = torch.arange(120.0).view(2, 3, 4, 5)
    expected, images = images.view(2, -1), images.contiguous(memory_format=torch.channels_last)
    with memory_format.reshaping_views("channels_last"):
        assert torch.equal(images.view(2, -1), expected)
        assert torch.equal(images.view((2, -1)), expected)
        assert torch.equal(images.view_as(expected), expected)
        assert torch.equal(images.view(torch.int32), images.contiguous().view(torch.int32))
        assert expected.view(-1).data_ptr() == expected.data_ptr()
    with memory_format.reshaping_views("contiguous"), pytest.raises(RuntimeError, match="view size"):
        images.view(2, -1)
