"""Count the Python functions that a host calls between operators: a model of them, since the trace runs other ones.

Between two kernels a host runs Python: in modules, in the hooks of activation checkpointing, and in autograd functions.
Each of them stands for the number of functions that the libraries call on average. The functions that a trace calls
cannot be counted themselves: most are those of the simulation, and a profiler tripled its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

MODULE = 9
"""The functions called for each call of a module, its own three included. Counted on a CPU (torch 2.13, transformers
5.23, peft 0.21, without generators) as the mean of a layer: 9.7 in Llama, 9.1 in Llama with adapters of peft, 8.3 in
BERT, 11 in GPT-2."""

SAVED_TENSOR = 15
"""Those for each time that `torch.utils.checkpoint` packs a tensor: 30 for a tensor that a block saves, counted in the
same layers, of which 10 in forward and 20 in recomputation, which packs it again, and in unpacking."""

AUTOGRAD_FUNCTION = (9, 3)
"""Those for each call of a `torch.autograd.Function`, and for each call of its backward."""


@contextmanager
def counting(add: Callable[[int], None]) -> Iterator[None]:
    """Pass to `add` the number of functions, whenever some are called in the context.

    An autograd function that stands for one of a library has the attribute `library_calls`, as `AUTOGRAD_FUNCTION`.
    """
    saved_tensors: Any = saved_tensors_hooks
    set_hooks = saved_tensors.__init__
    function: Any = torch.autograd.Function
    backward: Any = torch.autograd.function.BackwardCFunction
    apply, apply_backward = function.__dict__["apply"], backward.apply

    def set_counted_hooks(self: Any, pack: Callable[..., Any], unpack: Callable[..., Any]) -> None:
        def counted_pack(tensor: Any) -> Any:
            add(SAVED_TENSOR)
            return pack(tensor)

        set_hooks(self, counted_pack, unpack)

    def counted_apply(kind: Any, *args: Any, **kwargs: Any) -> Any:
        add(getattr(kind, "library_calls", AUTOGRAD_FUNCTION)[0])
        return apply.__get__(None, kind)(*args, **kwargs)

    def counted_backward(node: Any, *gradients: Any) -> Any:
        add(getattr(node._forward_cls, "library_calls", AUTOGRAD_FUNCTION)[1])
        return apply_backward(node, *gradients)

    modules = nn.modules.module.register_module_forward_pre_hook(lambda *_: add(MODULE))
    saved_tensors.__init__ = set_counted_hooks
    function.apply, backward.apply = classmethod(counted_apply), counted_backward
    try:
        yield
    finally:
        saved_tensors.__init__ = set_hooks
        function.apply, backward.apply = apply, apply_backward
        modules.remove()
