"""The faster fake mode returns the same results as torch's own, including cached ones."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from shoestring.planning.trace import fake

OPERATORS: dict[str, Callable[[Tensor], Any]] = {
    "product": lambda x: x @ x.t(),
    "scalar of another type": lambda x: (x * 2, x * 2.0, x.to(torch.int64) * 2, x.to(torch.int64) * 2.0),
    "view": lambda x: x.view(8, 3),
    "unsafe view": lambda x: torch.ops.aten._unsafe_view(x, [8, 3]),
    "part": lambda x: x[1:, 2:],
    "split": lambda x: x.split(2, dim=1),
    "in place": lambda x: x.add_(1),
    "several": lambda x: torch.native_layer_norm(x, [6], None, None, 1e-5),
    "channels last": lambda x: torch.empty_like(x[None, None].to(memory_format=torch.channels_last)),
    "strides": lambda x: (torch.empty_like(x), torch.empty_like(x.t().contiguous().t())),
    "conjugate": lambda x: torch.complex(x, x).conj(),
    "many": lambda x: torch._foreach_add([x, x.half()], 1.0),
    "nothing": lambda x: x.new_empty(0),
}


def describe_results(mode: FakeTensorMode, work: Callable[[Tensor], Any]) -> list[Any]:
    """Return the metadata of three results, the latter two cached, and whether they share the operand's storage."""
    descriptions = []
    with mode:
        for _ in range(3):
            values = torch.empty(4, 6)
            for result in torch.utils._pytree.tree_leaves(work(values)):
                shared = result.untyped_storage()._cdata == values.untyped_storage()._cdata
                sizes = result.untyped_storage().nbytes(), result.storage_offset(), result.is_conj()
                descriptions.append((result.shape, result.stride(), result.dtype, result.device, shared, sizes))
    return descriptions


@pytest.mark.parametrize("name", OPERATORS)
def test_results_equal_those_of_torch(name: str) -> None:
    work = OPERATORS[name]
    assert describe_results(fake.Mode(), work) == describe_results(FakeTensorMode(), work)


def test_results_are_cached() -> None:
    with fake.Mode():
        torch.empty(5, 7) @ torch.empty(7, 11)
        hits = FakeTensorMode.cache_hits
        torch.empty(5, 7) @ torch.empty(7, 11)
    assert FakeTensorMode.cache_hits == hits + 3


def test_tensors_of_another_mode_are_refused() -> None:
    with FakeTensorMode():
        foreign = torch.empty(3)
    with fake.Mode():
        torch.empty(3) + torch.empty(3)  # caches the result for tensors of this mode
        with pytest.raises(AssertionError, match=r"[Mm]ixing fake modes"):
            foreign + torch.empty(3)
