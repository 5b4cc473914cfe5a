"""Loading on the simulated device: what is allocated and freed until the weights have their final types.

The engine builds and casts a model in host memory and then moves it to the device, where each 4-bit layer packs its
weight (`bitsandbytes/nn/modules.py: Params4bit._quantize`). transformers moves 16-bit weights to the device one by one
and packs them there, and peft casts the others to fp32 afterwards. Traces of that way serve to compare estimates with
measurements of other loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from shoestring.planning.trace import attention, recurrent
from shoestring.planning.trace.event_log import EventLog
from shoestring.planning.trace.simulated_device import DEVICE, allocate_like
from shoestring.techniques.nf4 import Nf4Linear

Loading = Literal["engine", "transformers"]

_16_BIT = torch.float16


def move_model(
    log: EventLog,
    model: nn.Module,
    copy: Callable[[Tensor], Tensor] = allocate_like,
    *,
    from_host: bool = True,
    flattens: bool = True,
) -> None:
    """Replace the parameters and buffers by copies, by default on the simulated device, in the order of `Module.to`.

    Tied ones stay tied. An unpacked weight is on the device while its layer packs it; if the device is a CPU
    (`from_host` false), all of them are there from the start, as the model was built there. On a GPU the weights of a
    recurrent layer are copied to one buffer if it `flattens` them.
    """
    move_modules(log, [*children_first(model)], Copies(copy), from_host=from_host, flattens=flattens)


def move_modules(
    log: EventLog,
    modules: Sequence[nn.Module],
    copies: Copies,
    *,
    from_host: bool = True,
    flattens: bool = True,
) -> None:
    """Replace the own parameters and buffers of `modules` by `copies`, as `move_model` does for all of a model."""
    is_gpu = attention.CAPABILITY.get() is not None
    unpacked: dict[nn.Module, Tensor] = {}
    if not from_host:
        layers = (module for module in modules if _is_packed_here(module))
        unpacked = {layer: _unpacked_weight(log, layer, copies.device) for layer in layers}
    for module in modules:
        if from_host and _is_packed_here(module):
            unpacked[module] = _unpacked_weight(log, module, copies.device)
        copies.replace_all(module)
        unpacked.pop(module, None)
        if is_gpu and flattens:
            recurrent.flatten(log, module)


def _is_packed_here(module: nn.Module) -> bool:
    """Return whether a layer packs its weight when it moves; one that its files have in 4 bits is packed before."""
    return isinstance(module, Nf4Linear) and not module.is_packed_in_files


def load_with_transformers(log: EventLog, model: nn.Module) -> None:
    """Load a 4-bit model with adapters as `from_pretrained`, `prepare_model_for_kbit_training` and `get_peft_model` do.

    The order is that of transformers 5.17 (`core_model_loading.py`; `modeling_utils.py: caching_allocator_warmup`
    allocates the bytes of all weights at once and frees them) and peft 0.21 (`utils/other.py`). Earlier versions of
    transformers load some weights in advance, in other threads, so that the order depends on the threads' timing.
    """
    copies = Copies(allocate_like)
    frozen, adapters = dict[str, _Slot](), dict[str, _Slot]()
    for name, parameter in model.named_parameters():  # a tied one once
        path, _, own_name = name.rpartition(".")
        group = adapters if parameter.requires_grad else frozen
        group[_original_name(name)] = _Slot(model.get_submodule(path), own_name)
    warm_up = _allocate(log, (sum(slot.loaded_bytes for slot in frozen.values()) // _16_BIT.itemsize,))
    del warm_up
    in_16_bits: dict[str, Tensor] = {}
    for name in sorted(frozen, key=_natural_order):
        slot = frozen[name]
        if slot.is_packed:
            unpacked = _unpacked_weight(log, slot.module)
            copies.replace(*slot)
            copies.replace_buffers(slot.module)
            del unpacked
        else:
            in_16_bits[name] = _allocate(log, slot.shape)
    _cast_to_fp32(frozen, in_16_bits, copies)
    in_16_bits |= {name: _allocate(log, slot.shape) for name, slot in adapters.items()}
    _cast_to_fp32(adapters, in_16_bits, copies)
    for module in children_first(model):
        copies.replace_all(module)


class Copies:
    """Replaces the tensors of modules by copies, each once; tied tensors get the same copy."""

    def __init__(self, copy: Callable[[Tensor], Tensor], *earlier: Copies, device: torch.device | str = DEVICE) -> None:
        """`device` is the one on which weights are packed. What `earlier` copies have is copied already."""
        self._copy, self.device = copy, device
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}
        for other in earlier:
            self._copies |= other._copies
        """Maps an original, and its copy, to the original and the copy."""

    def replace_all(self, module: nn.Module) -> None:
        """Replace the module's own parameters, then its buffers, that are not replaced yet."""
        for name, parameter in module._parameters.items():
            if parameter is not None:
                self.replace(module, name)
        self.replace_buffers(module)

    def replace(self, module: nn.Module, name: str) -> None:
        """Replace a parameter."""
        parameter = module._parameters[name]
        assert parameter is not None
        # Set the attribute, so that recurrent layers update their own list of weights.
        setattr(module, name, self._copy_of(parameter, self._copy_parameter))

    def replace_buffers(self, module: nn.Module) -> None:
        """Replace the module's own buffers."""
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = self._copy_of(buffer, self._copy)

    def forget(self, copies: Iterable[Tensor]) -> None:
        """Keep these copies no longer: they have moved elsewhere. No other module may share them."""
        for copy in copies:
            if pair := self._copies.pop(id(copy), None):
                self._copies.pop(id(pair[0]), None)

    def _copy_parameter(self, parameter: nn.Parameter) -> nn.Parameter:
        return nn.Parameter(self._copy(parameter), requires_grad=parameter.requires_grad)

    def _copy_of(self, tensor: Tensor, copy: Callable[[Any], Tensor]) -> Tensor:
        if id(tensor) not in self._copies:
            pair = tensor, copy(tensor)
            self._copies |= {id(member): pair for member in pair}
        return self._copies[id(tensor)][1]


class _Slot(NamedTuple):
    """A module and the name of one of its parameters."""

    module: nn.Module
    name: str

    @property
    def is_packed(self) -> bool:
        return isinstance(self.module, Nf4Linear) and self.name == "weight"

    @property
    def shape(self) -> torch.Size:
        shape: torch.Size = getattr(self.module, self.name).shape
        return shape

    @property
    def loaded_bytes(self) -> int:
        """The bytes that transformers expects to need."""
        return self.shape.numel() * (1 if self.is_packed else _16_BIT.itemsize)


def _cast_to_fp32(slots: Mapping[str, _Slot], in_16_bits: dict[str, Tensor], copies: Copies) -> None:
    for name, slot in slots.items():
        if name in in_16_bits:
            copies.replace(*slot)
            del in_16_bits[name]


def _original_name(name: str) -> str:
    """Return the name that a parameter had before peft wrapped its module."""
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


def _natural_order(name: str) -> list[tuple[int, int, str]]:
    """Return the key by which transformers sorts the names of weights: numbers between dots by their value, first."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in name.split(".")]


def children_first(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        yield from children_first(child)
    yield module


def _unpacked_weight(log: EventLog, layer: nn.Module, device: torch.device | str = DEVICE) -> Tensor:
    assert isinstance(layer, Nf4Linear)
    return _allocate(log, (layer.out_features, layer.in_features), layer.unpacked, device)


def _allocate(
    log: EventLog, shape: tuple[int, ...], dtype: torch.dtype = _16_BIT, device: torch.device | str = DEVICE
) -> Tensor:
    tensor = torch.empty(shape, dtype=dtype, device=device)
    log.label([tensor], "loading copies")
    return tensor
