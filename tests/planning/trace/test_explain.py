"""Errors of code that cannot be traced name the operator and the line, and have a hint."""

import re
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from shoestring.base.errors import TraceError, UsageError
from shoestring.planning.trace import fake
from shoestring.planning.trace.explain import explain_errors


@pytest.fixture(scope="module", autouse=True)
def operator() -> Iterator[None]:
    """Register an operator without a fake implementation, as an extension does."""
    library = torch.library.Library("an_extension", "DEF")
    library.define("secret(Tensor x) -> Tensor")
    library.impl("secret", lambda x: x.clone(), "CPU")
    yield
    del library


def condition(x: Tensor) -> Tensor:
    return x if x.sum() > 0 else -x


def item(x: Tensor) -> Tensor:
    return x * x.max().item()


def nonzero(x: Tensor) -> Tensor:
    return x.nonzero()


def selected(x: Tensor) -> Tensor:
    return x[x > 0]


def extension(x: Tensor) -> Tensor:
    result: Tensor = torch.ops.an_extension.secret(x)
    return result


def memory(x: Tensor) -> int:
    return x.data_ptr()


def real_gpu(x: Tensor) -> object:
    return torch.cuda.current_device()


def selected_gpu(x: Tensor) -> object:
    return torch.cuda.device(0).__enter__()


def mismatched(x: Tensor) -> Tensor:
    return x @ torch.empty(7, 7)


@pytest.mark.parametrize(
    ("work", "message", "hint"),
    [
        (condition, "_local_scalar_dense.*condition.*values", "from shapes or on the host"),
        (item, r"_local_scalar_dense.*\.item\(\)", "from shapes or on the host"),
        (nonzero, r"aten.nonzero.*nonzero\(\)", "from shapes or on the host"),
        (selected, r"aten.nonzero.*x\[mask\]", "from shapes or on the host"),
        (extension, "an_extension.*secret", "register_fake"),
        (memory, "data pointer", "custom_op"),
        (mismatched, "RuntimeError", "with a small batch on the CPU"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_error_names_operator_and_line(work: Callable[[Tensor], object], message: str, hint: str) -> None:
    with fake.Mode(), pytest.raises(TraceError) as caught, explain_errors():
        work(torch.empty(4, 4))
    assert re.search(message, caught.value.message)
    line = work.__code__.co_firstlineno + 1
    assert f"{__file__}:{line} in {work.__name__}" in caught.value.message
    assert caught.value.hint and hint in caught.value.hint


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real GPU")
@pytest.mark.parametrize("work", [real_gpu, selected_gpu])
def test_use_of_a_real_gpu_has_a_hint(work: Callable[[Tensor], object]) -> None:
    with fake.Mode(), pytest.raises(TraceError) as caught, explain_errors():
        work(torch.empty(4, 4))
    assert f"in {work.__name__}" in caught.value.message
    assert caught.value.hint and "device of the input tensors" in caught.value.hint


def test_own_errors_are_not_changed() -> None:
    with pytest.raises(UsageError, match="no such thing"), explain_errors():
        raise UsageError("no such thing")
