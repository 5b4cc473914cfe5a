import pytest
import torch
from torch import Tensor, nn

from shoestring.recipes.cloud import filtering
from shoestring.recipes.cloud.filtering import dynamic_filter

LEAK = 0.1
HIDDEN = 5


def directly(features: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The same by copies: every pixel's square, times its kernel."""
    count, channels, height, width = features.shape
    area = len(weight) // channels
    kernels = nn.functional.conv2d(hidden, weight[:, :, None, None], bias)
    kernels = nn.functional.leaky_relu(kernels, LEAK).unflatten(1, (channels, area))
    reach = int(area**0.5) // 2
    padded = nn.functional.pad(features, (reach,) * 4, mode="replicate")
    squares = nn.functional.unfold(padded, 2 * reach + 1).view(count, channels, area, height, width)
    return (squares * kernels).sum(dim=2)


def ours(*inputs: Tensor) -> Tensor:
    return dynamic_filter(*inputs, LEAK)


def drawn(count: int, channels: int, side: int, height: int, width: int) -> list[Tensor]:
    """Features, hidden, weight and bias."""
    torch.manual_seed(0)
    area = channels * side**2
    shapes = ((count, channels, height, width), (count, HIDDEN, height, width), (area, HIDDEN), (area,))
    return [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_it_is_what_unfolding_gives_forward_and_backward(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows are filtered together: of 7, by 3 one is left over."""
    monkeypatch.setitem(filtering.KERNELS, "cpu", rows * 3 * 25 * 6)
    inputs = drawn(2, 3, 5, 7, 6)
    found, expected = ours(*inputs), directly(*inputs)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(found)
    torch.testing.assert_close(
        torch.autograd.grad(found, inputs, weights), torch.autograd.grad(expected, inputs, weights)
    )


def test_its_gradient_is_that_of_small_differences() -> None:
    assert torch.autograd.gradcheck(ours, drawn(1, 2, 3, 3, 4))


def test_it_keeps_no_kernels() -> None:
    inputs = drawn(1, 4, 5, 8, 8)
    kept = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = ours(*inputs)
    assert result.requires_grad
    features = 4 * (8 * 8 + 12 * 12)  # as they are, and padded
    assert sum(kept.values()) == features + HIDDEN * 8 * 8 + 4 * 25 * (HIDDEN + 1)


def test_kernels_in_half_precision_are_summed_in_the_features_type() -> None:
    features, hidden, weight, bias = (tensor.detach().float().requires_grad_() for tensor in drawn(1, 2, 3, 4, 4))
    half = hidden.detach().bfloat16().requires_grad_()
    result = ours(features, half, weight, bias)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, ours(features, hidden, weight, bias), rtol=0.05, atol=0.2)
    result.sum().backward()
    assert half.grad is not None and half.grad.dtype == torch.bfloat16
    assert features.grad is not None and features.grad.dtype == torch.float32
    assert weight.grad is not None and weight.grad.dtype == torch.float32
