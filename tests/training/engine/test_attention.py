"""The backward pass of attention runs in the strict mode of determinism, and nothing else does.

On a CPU it is another operator. That torch then selects the deterministic kernels is seen on a GPU alone.
"""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from shoestring.training.engine.attention import deterministic_attention
from shoestring.training.engine.determinism import deterministic

ON_CPU = (("_scaled_dot_product_flash_attention_for_cpu_backward",), "AutogradCPU")
MEMORY_MESSAGE = "CUDA out of memory. Tried to allocate 1 GiB"


class Modes(TorchDispatchMode):
    """Records the debug mode of determinism in which each operator runs; one of them may fail."""

    def __init__(self, failing=""):
        super().__init__()
        self.by_operator, self.failing = {}, failing

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        name = operator.overloadpacket.__name__
        self.by_operator[name] = torch.get_deterministic_debug_mode()
        if name == self.failing:
            raise torch.OutOfMemoryError(MEMORY_MESSAGE)
        return operator(*args, **(kwargs or {}))


def gradient():
    torch.manual_seed(0)
    query = torch.randn(2, 4, 8, 16, requires_grad=True)
    scaled_dot_product_attention(query, query, query).square().sum().backward()
    return query.grad


def test_only_the_backward_of_attention_is_strict():
    expected = gradient()
    with deterministic(), deterministic(), deterministic_attention(*ON_CPU), Modes() as modes:
        assert torch.equal(gradient(), expected)
        assert torch.get_deterministic_debug_mode() == 1
    assert modes.by_operator.pop(ON_CPU[0][0]) == 2
    assert set(modes.by_operator.values()) == {1}
    with Modes() as modes:
        gradient()
    assert set(modes.by_operator.values()) == {0}, "the kernels are torch's again"


def test_out_of_memory_within_attention_leaves_the_strict_mode():
    with deterministic(), deterministic_attention(*ON_CPU):
        with pytest.raises(torch.OutOfMemoryError, match="1 GiB"), Modes(failing=ON_CPU[0][0]):
            gradient()
        assert torch.get_deterministic_debug_mode() == 1


def test_attention_of_cudnn_is_disabled():
    before = torch.backends.cuda.cudnn_sdp_enabled()
    with deterministic():
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled() == before
