"""torch's fake mode without a real GPU, and with cheaper cache keys: the same results in a third of the time.

`FakeTensorMode` caches the result of each operator by its operands and spends most of its time on the cache keys
(torch's `torch/_subclasses/fake_tensor.py: _prep_args_for_hash`). Here shapes are plain numbers and layouts plain
strides, so a key needs less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import SymBool, SymFloat, SymInt, Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode

from shoestring.planning.trace import values

DEVICE_OF = torch.ops.prim.device.default
"""The operator behind `tensor.device`, called more often than all computing operators together."""

_READ = torch.ops.aten._local_scalar_dense.default
_UNSAFE_VIEW, _VIEW = torch.ops.aten._unsafe_view.default, torch.ops.aten.view.default

_Bypass: Any = fake_tensor._BypassDispatchCache
_Key: Any = fake_tensor._DispatchCacheKey

_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
"""Types of arguments that enter the key by type and value; the type tells the equal values 1 and 1.0 apart."""


_LEAST_VERSION = (2, 13)
"""The torch version whose private functions `Mode` overrides; older versions use their own, slower mode."""


def mode() -> type[FakeTensorMode]:
    """Return the class of the fake mode to trace in."""
    major, minor = torch.__version__.split(".")[:2]
    return Mode if (int(major), int(minor)) >= _LEAST_VERSION else HostMode


class HostMode(FakeTensorMode):
    """A fake mode that computes on the host alone, on machines with and without a GPU.

    A tensor of one element whose value is known (as after `torch.tensor(3.0)`) is kept as a real tensor, and torch
    computes with it. If the machine has a GPU, torch's own mode also copies it to other devices for real, which fails
    for a simulated device: it has no memory.
    """

    @property
    def avoid_device_init(self) -> bool:
        return True

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return super().dispatch(func, types, args, kwargs)
        except DataDependentOutputException:
            if func is _READ and values.ARE_ASSUMED.get() and args[0].is_floating_point():
                return values.PLACEHOLDER
            raise


class Mode(HostMode):
    """A fake mode with cheaper cache keys."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here, so there is no need to disable compilation at each operator.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is DEVICE_OF:
            return args[0].fake_device
        # Both have the same effect on shapes and storages; torch caches only the results of `view`.
        return self.dispatch(_VIEW if func is _UNSAFE_VIEW else func, types, args, kwargs or {})

    def _cache_key(
        self,
        state: Any,  # noqa: ARG002 - for symbolic shapes
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Return everything that the result depends on. Raises torch's own exception if it must not be cached."""
        key_parts: list[Any] = [func, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
        self._add_arguments(key_parts, args)
        if kwargs:
            key_parts += kwargs
            self._add_arguments(key_parts, kwargs.values())
        return _Key(tuple(key_parts))

    def _add_arguments(self, key_parts: list[Any], arguments: Any) -> None:
        for argument in arguments:
            kind = type(argument)
            if kind in _PLAIN:
                key_parts += (kind, argument)
            elif isinstance(argument, Tensor):
                self._add_tensor(key_parts, argument)
            elif kind in (list, tuple, torch.Size):
                key_parts += (kind, len(argument))
                self._add_arguments(key_parts, argument)
            elif isinstance(argument, SymInt | SymFloat | SymBool):
                raise _Bypass("symbolic shape")
            else:
                raise _Bypass(f"argument of type {kind}")

    def _add_tensor(self, key_parts: list[Any], tensor: Tensor) -> None:
        if not isinstance(tensor, FakeTensor) or tensor.fake_mode is not self:
            raise _Bypass("not our fake")
        if tensor.constant is not None:
            raise _Bypass("constant attribute")
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise _Bypass(f"{tensor.layout} tensor")
        key_parts += (
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
        """Build the result from its cache entry; the base class handles the rare kinds."""
        if entry.inplace_idx is not None:
            return args[entry.inplace_idx]
        metadata = entry.metadata
        if metadata is None or metadata.is_conj or metadata.is_neg:
            return super()._get_output_tensor_from_cache_entry(state, entry, key, func, args)
        meta_tensor = torch.empty_strided(metadata.shape, metadata.stride, dtype=metadata.dtype, device="meta")
        if entry.view_idx is not None:
            storage = args[entry.view_idx].untyped_storage()
            meta_tensor.set_(storage, metadata.storage_offset, metadata.shape, metadata.stride)
        return FakeTensor(self, meta_tensor, metadata.device)
