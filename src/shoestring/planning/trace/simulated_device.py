"""The simulated GPU: a device without memory, on which torch's operators run on shapes alone.

It is registered under torch's dispatch key for out-of-tree devices; `FakeTensorMode` computes the shapes. Unlike `cuda`
on a machine without a GPU, such a device supports autograd, and unlike `meta` it selects the operators of a GPU (such
as dropout with a boolean mask). It cannot be unregistered as the process's accelerator, so tracing runs in a child
process.
"""

import copy
import functools
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

from shoestring.base.settings import MemoryFormat
from shoestring.planning.trace import fake, tied_weights
from shoestring.planning.trace.places import is_own
from shoestring.techniques import memory_format, nested, trees

DEVICE, KEY = "simulated", "PrivateUse1"
"""The device's name and its dispatch key."""

_library = torch.library.Library("aten", "IMPL")

_SINGLE_KERNEL_OPERATORS = ("silu_backward", "mish_backward")
"""Operators for which CUDA has a kernel, while devices without one compute them by several operators: of all operators
with a CPU kernel, those that are also composite (`aten/src/ATen/native/native_functions.yaml`) and run in training."""


def set_up() -> None:
    """Register the simulated device, once per process."""
    module = types.ModuleType(DEVICE)
    # A model that asks torch for an accelerator finds none, as it finds no CUDA device (`fake_mode`).
    return_values: dict[str, Any] = {
        "is_available": False,
        "is_initialized": False,
        "current_device": 0,
        "device_count": 1,
        "get_amp_supported_dtype": [torch.float16, torch.bfloat16],
    }
    for name, value in return_values.items():
        setattr(module, name, lambda value=value: value)
    backend_registration._setup_privateuseone_for_python_backend(DEVICE, backend_module=module)
    for name in _SINGLE_KERNEL_OPERATORS:
        _library.impl(name, _call_without_decomposition(getattr(torch.ops.aten, name).default), f"Autograd{KEY}")
    _route_torch_tensor_through_cpu()


@contextmanager
def fake_mode() -> Iterator[FakeTensorMode]:
    """Enter the fake mode to trace in. The recipe's code finds no GPU there, so it does the same on every machine."""
    # Tensors that a model creates itself and does not register are real and may be combined with fake ones.
    with _hidden_gpus(), fake.mode()(allow_non_fake_inputs=True) as mode:
        yield mode


@contextmanager
def _hidden_gpus() -> Iterator[None]:
    """Within the context, the functions of `torch.cuda` by which a model decides what to do report no GPU.

    The others, which raise on a machine without a GPU, are left: hiding the GPU would only make them raise as well.
    """
    answers = {"is_available": False, "device_count": 0, "is_bf16_supported": False}
    cuda: Any = torch.cuda
    originals = {name: getattr(cuda, name) for name in answers}
    for name, original in originals.items():
        setattr(cuda, name, _answering_recipes(original, answers[name]))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(cuda, name, original)


def _answering_recipes(function: Callable[..., Any], answer: Any) -> Callable[..., Any]:
    """Return a function that returns `answer` to the recipe's code and what `function` returns to torch's own code.

    The functions that are left belong to torch, and could not work if they found no GPU.
    """

    @functools.wraps(function)
    def answering(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if is_own(sys._getframe(1).f_code.co_filename) else answer

    return answering


def build(build_model: Callable[[], nn.Module]) -> nn.Module:
    """Build the model on the meta device if its code permits that, otherwise with real tensors on the CPU."""
    try:
        with torch.device("meta"):
            model = build_model().train()
    except (NotImplementedError, RuntimeError, TypeError, ValueError):
        # Initialization that reads values (`.item()`, numpy) needs real tensors.
        return build_model().train()
    tied_weights.tie(model)
    return model


def allocate_like(tensor: Tensor, device: torch.device | str = DEVICE) -> Tensor:
    """Return a tensor of the same shape, strides and type on the simulated device, or another one."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)


def move_batch(batch: Any, format_: MemoryFormat | None = None) -> Any:
    """Return the batch with its tensors on the simulated device, as an engine moves them."""
    return nested.replaced(batch, lambda tensor: memory_format.converted(allocate_like(tensor), format_), _move_object)


def _move_object(value: Any) -> Any:
    """Return a copy of an object that has moved itself, with each copy of a tensor replaced by an allocation.

    The object is copied because many move in place, and the trace moves the same batch several times.
    """
    with _SharingTensors():
        copied = copy.deepcopy(value)
    mode: Any = _AllocatingCopies
    with mode():
        moved = copied.to(DEVICE)
    return copied if moved is None else moved


class _SharingTensors(TorchFunctionMode):
    """Makes deep copies of objects that share their tensors."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if function is Tensor.__deepcopy__ else function(*args, **(kwargs or {}))


class _AllocatingCopies(TorchDispatchMode):
    """Allocates a tensor where one is copied to the simulated device, as `allocate_like` does."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is torch.ops.aten._to_copy.default and str(kwargs.get("device")).partition(":")[0] == DEVICE:
            tensor = args[0]
            return torch.empty_strided(
                tensor.size(), tensor.stride(), dtype=kwargs.get("dtype") or tensor.dtype, device=DEVICE
            )
        return function(*args, **kwargs)


def tensors(tree: Any) -> Iterable[Tensor]:
    """Return the tensors in nested tuples, lists and dicts."""
    return (leaf for leaf in trees.leaves(tree) if isinstance(leaf, Tensor))


def _call_without_decomposition(operator: Any) -> Callable[..., Tensor]:
    """Return a kernel that calls the operator below autograd; the fake mode infers the shape of its result."""

    def kernel(*arguments: Tensor) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            result: Tensor = operator(*arguments)
        return result

    return kernel


def _dropout(values: Tensor, p: float, train: bool) -> Tensor:
    """Apply dropout with the boolean mask of a GPU; on the CPU torch multiplies by a mask of the values' own type."""
    return torch.native_dropout(values, p, train)[0] if train and p else values


def _route_torch_tensor_through_cpu() -> None:
    """Create the tensors of `torch.tensor(values, device=...)` on the CPU, as the simulated device has no memory to
    fill."""
    original_tensor = torch.tensor

    def tensor(data: Any, *, device: Any = None, **options: Any) -> Tensor:
        if device is None or torch.device(device).type != DEVICE:
            return original_tensor(data, device=device, **options)
        requires_grad = options.pop("requires_grad", False)
        return original_tensor(data, **options).to(device).requires_grad_(requires_grad)

    replacement: Any = tensor
    torch.tensor = replacement
