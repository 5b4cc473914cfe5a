"""An optimizer's kernel is set by flags of its own, and only where it has it."""

import pytest
import torch

from shoestring.errors import UsageError
from shoestring.techniques import kernels


def made(name: str, **options: object) -> torch.optim.Optimizer:
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
def test_the_flags_of_each_kernel(kernel: kernels.Kernel | None, expected: dict[str, object]) -> None:
    optimizer = made("AdamW")
    kernels.choose(optimizer, kernel)
    assert flags(optimizer) == expected


def test_every_kernel_takes_the_same_step() -> None:
    found = []
    for kernel in ("for-loop", "foreach", "fused"):
        optimizer = made("AdamW", lr=0.1)
        kernels.choose(optimizer, kernel)
        (weight,) = optimizer.param_groups[0]["params"]
        weight.grad = torch.full_like(weight, 0.5)
        optimizer.step()
        found.append(weight.detach())
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], found[2])


def test_a_kernel_it_has_not_is_refused_with_those_it_has() -> None:
    with pytest.raises(UsageError, match="RMSprop has for-loop, foreach"):
        kernels.choose(made("RMSprop"), "fused")
    assert kernels.available(made("SparseAdam")) == ["for-loop"]


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
def test_what_torch_would_choose_on_cuda(name: str, options: dict[str, object], foreach: object) -> None:
    optimizer = made(name, **options)
    kernels.choose(optimizer, None, many_by_default=True)
    assert flags(optimizer)["foreach"] == foreach
