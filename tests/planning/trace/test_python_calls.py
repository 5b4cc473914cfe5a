"""The Python functions that modules, checkpointed blocks and autograd functions stand for, recorded with operators."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from shoestring.planning.trace.python_calls import AUTOGRAD_FUNCTION, MODULE, SAVED_TENSOR, counting
from shoestring.planning.trace.record import Op
from shoestring.planning.trace.recorder import Recorder, real
from shoestring.techniques.nf4 import Nf4Linear


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, values: Tensor) -> Tensor:
        return values * 2

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        return gradients[0] * 2


def replaced() -> list[object]:
    """Return the methods of torch that are replaced while calls are counted."""
    function = torch.autograd.Function.__dict__["apply"]
    return [saved_tensors_hooks.__init__, function, torch.autograd.function.BackwardCFunction.apply]


def test_modules_and_autograd_functions_are_counted() -> None:
    calls: list[int] = []
    with counting(calls.append):
        nn.Sequential(nn.ReLU(), nn.ReLU())(torch.ones(2))
        Double.apply(torch.ones(2, requires_grad=True)).sum().backward()  # type: ignore[no-untyped-call]
    assert calls == [*[MODULE] * 3, *AUTOGRAD_FUNCTION]


def test_a_saved_tensor_of_a_checkpointed_block_is_counted_in_forward_and_in_recomputation() -> None:
    calls: list[int] = []
    with counting(calls.append):
        values = torch.ones(2, requires_grad=True)
        result = checkpoint(lambda x: x.exp().sin(), values, use_reentrant=False)
        assert calls.count(SAVED_TENSOR) == 2  # beside an autograd function, before torch 2.11
        result.sum().backward()
    assert calls.count(SAVED_TENSOR) == 4
    assert values.grad is not None and values.grad.allclose(torch.tensor(1.0).exp().cos() * torch.tensor(1.0).exp())


def test_a_layer_with_4_bits_counts_the_functions_of_its_library() -> None:
    layer = Nf4Linear(nn.Linear(64, 32), compute=torch.float32, double=False)
    calls: list[int] = []
    with counting(calls.append):
        layer(torch.ones(1, 64, requires_grad=True)).sum().backward()
    assert calls[0] == MODULE and len(calls) == 3
    assert all(count > 3 * sum(AUTOGRAD_FUNCTION) for count in calls[1:])


def test_nothing_is_counted_afterwards() -> None:
    before = replaced()
    calls: list[int] = []
    with pytest.raises(ZeroDivisionError), counting(calls.append):
        raise ZeroDivisionError
    nn.ReLU()(torch.ones(2))
    assert not calls
    assert replaced() == before


def test_an_operator_has_the_functions_since_the_previous_one() -> None:
    recorder = Recorder(watched=real)
    module = nn.Sequential(nn.Flatten(), nn.ReLU())
    with recorder, counting(recorder.log.count_python_calls):
        module(torch.ones(2, 3)).neg()
    _, events = recorder.log.record()
    operators = [event for event in events if isinstance(event, Op)]
    assert [op.python_calls for op in operators if op.name != "aten::ones"] == [3 * MODULE, 0]
