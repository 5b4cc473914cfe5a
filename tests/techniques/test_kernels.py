"""The kernel of an optimizer is selected by its flags, and refused if it does not have that kernel."""

from functools import partial

import pytest
import torch
from torch import nn

from shoestring.base.errors import UsageError
from shoestring.techniques import kernels


def build_optimizer(name: str, **options: object) -> torch.optim.Optimizer:
    return getattr(torch.optim, name)([torch.nn.Parameter(torch.ones(3))], **options)


def flags(optimizer: torch.optim.Optimizer) -> dict[str, object]:
    return {flag: optimizer.param_groups[0].get(flag, "none") for flag in ("foreach", "fused")}


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("for-loop", {"foreach": False, "fused": False}),
        ("foreach", {"foreach": True, "fused": False}),
        ("fused", {"foreach": False, "fused": True}),
        (None, {"foreach": None, "fused": None}),
    ],
)
def test_kernel_sets_the_flags(kernel: kernels.Kernel | None, expected: dict[str, object]) -> None:
    optimizer = build_optimizer("AdamW")
    kernels.choose(optimizer, kernel)
    assert flags(optimizer) == expected


def test_every_kernel_makes_the_same_step() -> None:
    weights = []
    for kernel in ("for-loop", "foreach", "fused"):
        optimizer = build_optimizer("AdamW", lr=0.1)
        kernels.choose(optimizer, kernel)
        (weight,) = optimizer.param_groups[0]["params"]
        weight.grad = torch.full_like(weight, 0.5)
        optimizer.step()
        weights.append(weight.detach())
    torch.testing.assert_close(weights[0], weights[1])
    torch.testing.assert_close(weights[0], weights[2])


def test_unavailable_kernel_is_refused_with_the_available_ones() -> None:
    with pytest.raises(UsageError, match="RMSprop has for-loop, foreach"):
        kernels.choose(build_optimizer("RMSprop"), "fused")
    assert kernels.available(build_optimizer("SparseAdam")) == ["for-loop"]


def test_fused_kernel_of_adagrad_is_refused_on_a_gpu() -> None:
    with pytest.raises(UsageError, match="Adagrad has for-loop, foreach"):
        kernels.choose(build_optimizer("Adagrad"), "fused", foreach_by_default=True)
    kernels.choose(build_optimizer("Adagrad"), "fused")


@pytest.mark.parametrize(
    ("name", "options", "foreach"),
    [
        ("AdamW", {}, True),
        ("AdamW", {"foreach": False}, False),
        ("AdamW", {"fused": True}, None),
        ("SGD", {"differentiable": True}, None),
        ("Adafactor", {}, None),
        ("SparseAdam", {}, "none"),
    ],
)
def test_default_kernel_is_that_of_cuda(name: str, options: dict[str, object], foreach: object) -> None:
    optimizer = build_optimizer(name, **options)
    kernels.choose(optimizer, None, foreach_by_default=True)
    assert flags(optimizer)["foreach"] == foreach


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(4, 2, sparse=True)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (torch.optim.AdamW, True),
        (partial(torch.optim.SGD, lr=0.1), True),
        (partial(torch.optim.AdamW, foreach=True), False),
        (partial(torch.optim.Adam, fused=False), False),
        (torch.optim.Adagrad, False),
        (torch.optim.Rprop, False),
    ],
)
def test_plan_may_fuse_the_optimizers_with_a_kernel_on_cuda(make, expected):
    model = nn.Linear(2, 2)
    assert kernels.can_be_fused(make(model.parameters()), model) is expected


def test_sparse_gradients_and_complex_weights_are_not_fused():
    bag, model = Bag(), nn.ParameterList([torch.zeros(2, dtype=torch.complex64)])
    assert not kernels.can_be_fused(torch.optim.SGD(bag.parameters(), lr=0.1), bag)
    assert not kernels.can_be_fused(torch.optim.SGD(model.parameters(), lr=0.1), model)
