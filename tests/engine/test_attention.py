"""The backward pass of attention runs in the strict mode of determinism, and nothing else does.

On a CPU the node is another one. That torch then selects the deterministic kernels is seen on a GPU alone.
"""

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from shoestring.engine import attention
from shoestring.engine.determinism import deterministic
from shoestring.engine.precision import mixed_precision
from shoestring.engine.recovery import discard_attempt

CPU_NODE = "ScaledDotProductFlashAttentionForCpuBackward0"


class Modes(TorchDispatchMode):
    """Records the debug mode of determinism in which each operator runs."""

    def __init__(self):
        super().__init__()
        self.by_operator = {}

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.by_operator[operator.overloadpacket.__name__] = torch.get_deterministic_debug_mode()
        return operator(*args, **(kwargs or {}))


def attend(*, sliced=False):
    query = torch.randn(2, 4, 8, 16, requires_grad=True)
    output = functional.scaled_dot_product_attention(query, query, query)
    return query, output[..., :8] if sliced else output


@pytest.mark.parametrize("sliced", [False, True])
def test_only_the_backward_of_attention_is_strict(monkeypatch, sliced):
    monkeypatch.setattr(attention, "_NODES", (CPU_NODE,))
    with deterministic(), Modes() as modes:
        _, output = attend(sliced=sliced)
        attention.run_strictly(output)
        output.square().sum().backward()
        assert torch.get_deterministic_debug_mode() == 1
    backward = modes.by_operator.pop("_scaled_dot_product_flash_attention_for_cpu_backward")
    assert backward == 2
    strict = {name for name, mode in modes.by_operator.items() if mode == 2}
    assert strict <= {"detach"}  # of the tensors that the node has saved


def test_functions_and_switches_are_restored():
    before = functional.scaled_dot_product_attention, torch.backends.cuda.cudnn_sdp_enabled()
    with deterministic():
        assert functional.scaled_dot_product_attention is not before[0]
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        query, output = attend()
        assert torch.equal(output, before[0](query, query, query))
    assert (functional.scaled_dot_product_attention, torch.backends.cuda.cudnn_sdp_enabled()) == before


def test_failed_backward_leaves_the_strict_mode(monkeypatch):
    """Out of memory within the backward of attention: its hook, which ends the mode, does not run."""
    with deterministic():
        torch.set_deterministic_debug_mode(2)
        discard_attempt(torch.nn.Linear(1, 1), None, mixed_precision("fp32", torch.device("cpu")))
        assert torch.get_deterministic_debug_mode() == 1
