import pytest
import torch
from torch import Tensor, nn

from shoestring_recipes.cloud import filtering
from shoestring_recipes.cloud.filtering import dynamic_filter

LEAK = 0.1
HIDDEN = 5


def filter_by_copies(features: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute the filter with a copy of every pixel's square, multiplied by its kernel."""
    count, channels, height, width = features.shape
    area = len(weight) // channels
    kernels = nn.functional.conv2d(hidden, weight[:, :, None, None], bias)
    kernels = nn.functional.leaky_relu(kernels, LEAK).unflatten(1, (channels, area))
    reach = int(area**0.5) // 2
    padded = nn.functional.pad(features, (reach,) * 4, mode="replicate")
    squares = nn.functional.unfold(padded, 2 * reach + 1).view(count, channels, area, height, width)
    return (squares * kernels).sum(dim=2)


def filter_by_blocks(*inputs: Tensor) -> Tensor:
    return dynamic_filter(*inputs, LEAK)


def random_inputs(count: int, channels: int, side: int, height: int, width: int) -> list[Tensor]:
    """Return features, hidden, weight and bias."""
    torch.manual_seed(0)
    area = channels * side**2
    shapes = ((count, channels, height, width), (count, HIDDEN, height, width), (area, HIDDEN), (area,))
    return [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_result_and_gradients_equal_those_of_unfolding(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of rows per block does not matter; 7 rows in blocks of 3 leave a block of 1."""
    monkeypatch.setitem(filtering.KERNEL_BUDGET, "cpu", rows * 3 * 25 * 6)
    inputs = random_inputs(2, 3, 5, 7, 6)
    result, expected = filter_by_blocks(*inputs), filter_by_copies(*inputs)
    torch.testing.assert_close(result, expected)
    weights = torch.randn_like(result)
    torch.testing.assert_close(
        torch.autograd.grad(result, inputs, weights), torch.autograd.grad(expected, inputs, weights)
    )


def test_gradient_equals_finite_differences() -> None:
    assert torch.autograd.gradcheck(filter_by_blocks, random_inputs(1, 2, 3, 3, 4))


def test_kernels_are_not_saved_for_backward() -> None:
    inputs = random_inputs(1, 4, 5, 8, 8)
    saved_sizes = {}

    def record(tensor: Tensor) -> Tensor:
        saved_sizes[tensor.untyped_storage().data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        result = filter_by_blocks(*inputs)
    assert result.requires_grad
    features = 4 * (8 * 8 + 12 * 12)  # without and with padding
    assert sum(saved_sizes.values()) == features + HIDDEN * 8 * 8 + 4 * 25 * (HIDDEN + 1)


def test_half_precision_kernels_are_summed_in_feature_dtype() -> None:
    features, hidden, weight, bias = (
        tensor.detach().float().requires_grad_() for tensor in random_inputs(1, 2, 3, 4, 4)
    )
    half = hidden.detach().bfloat16().requires_grad_()
    result = filter_by_blocks(features, half, weight, bias)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, filter_by_blocks(features, hidden, weight, bias), rtol=0.05, atol=0.2)
    result.sum().backward()
    assert half.grad is not None and half.grad.dtype == torch.bfloat16
    assert features.grad is not None and features.grad.dtype == torch.float32
    assert weight.grad is not None and weight.grad.dtype == torch.float32
