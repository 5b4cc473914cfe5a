import torch
from torch import Tensor, nn

from shoestring.recipes.cloud.filtering import dynamic_filter


def directly(features: Tensor, kernels: Tensor) -> Tensor:
    """The same by copies: every pixel's square, times its kernel."""
    count, channels, area, height, width = kernels.shape
    reach = int(area**0.5) // 2
    padded = nn.functional.pad(features, (reach,) * 4, mode="replicate")
    squares = nn.functional.unfold(padded, 2 * reach + 1).view(count, channels, area, height, width)
    return (squares * kernels).sum(dim=2)


def drawn(count: int, channels: int, side: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    features = torch.randn(count, channels, height, width, dtype=torch.float64, requires_grad=True)
    kernels = torch.randn(count, channels, side**2, height, width, dtype=torch.float64, requires_grad=True)
    return features, kernels


def test_it_is_what_unfolding_gives_forward_and_backward() -> None:
    inputs = drawn(2, 3, 5, 7, 6)
    ours, theirs = dynamic_filter(*inputs), directly(*inputs)
    torch.testing.assert_close(ours, theirs)
    weights = torch.randn_like(ours)
    torch.testing.assert_close(
        torch.autograd.grad((ours * weights).sum(), inputs), torch.autograd.grad((theirs * weights).sum(), inputs)
    )


def test_its_gradient_is_that_of_small_differences() -> None:
    assert torch.autograd.gradcheck(dynamic_filter, drawn(1, 2, 3, 3, 4))


def test_it_keeps_its_inputs_and_the_padded_one_alone() -> None:
    features, kernels = drawn(1, 4, 5, 8, 8)
    kept = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = dynamic_filter(features, kernels)
    assert result.requires_grad
    assert sum(kept.values()) == 8 * (4 * 8 * 8 + 4 * 12 * 12 + kernels.numel())


def test_kernels_in_half_precision_are_summed_in_the_features_type() -> None:
    features, kernels = (tensor.detach().float() for tensor in drawn(1, 2, 3, 4, 4))
    half = kernels.half().requires_grad_()
    features.requires_grad_()
    result = dynamic_filter(features, half)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, dynamic_filter(features, half.float()))
    result.sum().backward()
    assert half.grad is not None and half.grad.dtype == torch.float16
    assert features.grad is not None and features.grad.dtype == torch.float32
