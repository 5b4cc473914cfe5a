"""torch's fake mode with a cheaper look into its cache: the same results for a third of the time.

`FakeTensorMode` remembers what an operator makes of operands that it has seen before, and spends most of its time on
the description of the operands that it looks up (torch's `torch/_subclasses/fake_tensor.py: _prep_args_for_hash`).
Shapes here are plain numbers and layouts plain strides, which leaves little to describe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import SymBool, SymFloat, SymInt, Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

DEVICE_OF = torch.ops.prim.device.default
"""What `tensor.device` asks, more often than all that computes together."""

_UNSAFE_VIEW, _VIEW = torch.ops.aten._unsafe_view.default, torch.ops.aten.view.default

_Bypass: Any = fake_tensor._BypassDispatchCache
_Key: Any = fake_tensor._DispatchCacheKey

_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
"""Arguments that say all there is to know by their type and value. 1 and 1.0 are equal, but not alike."""


_READ = (2, 13)
"""The first torch whose private parts this was written against; an older one gets its own mode, which is slower."""


def mode() -> type[FakeTensorMode]:
    """The fake mode to trace in."""
    major, minor = torch.__version__.split(".")[:2]
    return Mode if (int(major), int(minor)) >= _READ else FakeTensorMode


class Mode(FakeTensorMode):
    """The fake mode of a trace."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here, so nothing has to be kept from being compiled at each operator.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is DEVICE_OF:
            return args[0].fake_device
        # To shapes and storages they are one; torch remembers only the results of the second.
        return self.dispatch(_VIEW if func is _UNSAFE_VIEW else func, types, args, kwargs or {})

    def _cache_key(
        self,
        state: Any,  # noqa: ARG002 - for shapes that are symbols
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Everything that the result depends on. Raises torch's own exception for what is not to be remembered."""
        described: list[Any] = [func, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
        self._describe(described, args)
        if kwargs:
            described += kwargs
            self._describe(described, kwargs.values())
        return _Key(tuple(described))

    def _describe(self, described: list[Any], arguments: Any) -> None:
        for argument in arguments:
            kind = type(argument)
            if kind in _PLAIN:
                described += (kind, argument)
            elif isinstance(argument, Tensor):
                self._describe_tensor(described, argument)
            elif kind in (list, tuple, torch.Size):
                described += (kind, len(argument))
                self._describe(described, argument)
            elif isinstance(argument, SymInt | SymFloat | SymBool):
                raise _Bypass("symbolic shape")
            else:
                raise _Bypass(f"argument of type {kind}")

    def _describe_tensor(self, described: list[Any], tensor: Tensor) -> None:
        if not isinstance(tensor, FakeTensor) or tensor.fake_mode is not self:
            raise _Bypass("not our fake")
        if tensor.constant is not None:
            raise _Bypass("constant attribute")
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise _Bypass(f"{tensor.layout} tensor")
        described += (
            tensor.dtype,
            tensor.shape,
            tensor.stride(),
            tensor.storage_offset(),
            tensor.untyped_storage().nbytes(),
            tensor.fake_device,
            tensor.requires_grad,
            tensor.is_conj(),
            tensor.is_neg(),
            tensor.is_inference(),
        )

    def _get_output_tensor_from_cache_entry(
        self, state: Any, entry: Any, key: Any, func: Any, args: Sequence[Any]
    ) -> Any:
        """A remembered result, made anew; the base class does the rare kinds."""
        if entry.inplace_idx is not None:
            return args[entry.inplace_idx]
        known = entry.metadata
        if known is None or known.is_conj or known.is_neg:
            return super()._get_output_tensor_from_cache_entry(state, entry, key, func, args)
        made = torch.empty_strided(known.shape, known.stride, dtype=known.dtype, device="meta")
        if entry.view_idx is not None:
            made.set_(args[entry.view_idx].untyped_storage(), known.storage_offset, known.shape, known.stride)
        return FakeTensor(self, made, known.device)
