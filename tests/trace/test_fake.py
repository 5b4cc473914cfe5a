"""The quicker fake mode makes what torch's own makes, also of what it remembers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from shoestring.trace import fake

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


def described(mode: FakeTensorMode, work: Callable[[Tensor], Any]) -> list[Any]:
    """Of three results, the latter two from memory: metadata, and whether the storage is the operand's."""
    found = []
    with mode:
        for _ in range(3):
            values = torch.empty(4, 6)
            for made in torch.utils._pytree.tree_leaves(work(values)):
                shared = made.untyped_storage()._cdata == values.untyped_storage()._cdata
                sizes = made.untyped_storage().nbytes(), made.storage_offset(), made.is_conj()
                found.append((made.shape, made.stride(), made.dtype, made.device, shared, sizes))
    return found


@pytest.mark.parametrize("name", OPERATORS)
def test_results_are_those_of_torchs_own(name: str) -> None:
    work = OPERATORS[name]
    assert described(fake.Mode(), work) == described(FakeTensorMode(), work)


def test_what_was_seen_is_remembered() -> None:
    with fake.Mode():
        torch.empty(5, 7) @ torch.empty(7, 11)
        hits = FakeTensorMode.cache_hits
        torch.empty(5, 7) @ torch.empty(7, 11)
    assert FakeTensorMode.cache_hits == hits + 3


def test_tensors_of_another_mode_are_refused() -> None:
    with FakeTensorMode():
        strange = torch.empty(3)
    with fake.Mode():
        torch.empty(3) + torch.empty(3)  # what is remembered is of its own tensors
        with pytest.raises(AssertionError, match=r"[Mm]ixing fake modes"):
            strange + torch.empty(3)
