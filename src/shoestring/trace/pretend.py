"""The pretend GPU: a device with a name and no memory, on which torch's operators run by shape alone.

torch's dispatch key for out-of-tree devices carries the name, `FakeTensorMode` does the shapes. Unlike `cuda` on a
machine without one, such a device takes autograd, and unlike `meta` it chooses the operators a GPU would (dropout
with a boolean mask, for one). It becomes the process's accelerator for good, hence a process of its own.
"""

import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import backend_registration

from shoestring.techniques import trees
from shoestring.trace import fake

_REGISTER: Callable[..., None] | None = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
DEVICE, KEY = ("pretend", "PrivateUse1") if _REGISTER else ("cpu", "CPU")
"""The device's name and its dispatch key. An older torch (2.6 for one) cannot register a device from Python; there
fake tensors on the CPU take its place, with the same operators redirected."""

_library = torch.library.Library("aten", "IMPL")

_IN_ONE_KERNEL = ("silu_backward", "mish_backward")
"""What CUDA has a kernel for and a device without one computes by several operators: of all operators with a kernel for
the CPU those that are also composite (`aten/src/ATen/native/native_functions.yaml`) and run in training."""


def set_up() -> None:
    """Make the pretend device, once per process."""
    if _REGISTER is None:
        _library.impl("dropout", _dropout, f"Autograd{KEY}")
        return
    module = types.ModuleType(DEVICE)
    # "Not available" keeps the fake mode from folding constants across devices, which fails without real kernels.
    answers: dict[str, Any] = {
        "is_available": False,
        "is_initialized": False,
        "current_device": 0,
        "device_count": 1,
        "get_amp_supported_dtype": [torch.float16, torch.bfloat16],
    }
    for name, answer in answers.items():
        setattr(module, name, lambda answer=answer: answer)
    _REGISTER(DEVICE, backend_module=module)
    for name in _IN_ONE_KERNEL:
        _library.impl(name, _as_one(getattr(torch.ops.aten, name).default), f"Autograd{KEY}")
    _make_tensors_by_way_of_the_cpu()


def fake_mode() -> FakeTensorMode:
    # Tensors that a model made itself and that are no parameters are real; they may meet fake ones.
    return fake.mode()(allow_non_fake_inputs=True)


def build(make: Callable[[], nn.Module]) -> nn.Module:
    """`make()`'s model without its memory where its code permits, else as a real one on the CPU."""
    try:
        with torch.device("meta"):
            return make().train()
    except (NotImplementedError, RuntimeError, TypeError, ValueError):
        # Initialisation that looks at values (`.item()`, numpy) needs them to exist.
        return make().train()


def like(tensor: Tensor) -> Tensor:
    """A tensor of the same shape, strides and type on the pretend device."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=DEVICE)


def move(model: nn.Module, copy: Callable[[Tensor], Tensor] = like) -> None:
    """Replace the model's parameters and buffers by copies, on the pretend device for one; tied ones stay tied."""
    moved: dict[int, Tensor] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if id(parameter) not in moved:
                    moved[id(parameter)] = nn.Parameter(copy(parameter), requires_grad=parameter.requires_grad)
                # By attribute, so that recurrent layers renew their own list of weights.
                setattr(module, name, moved[id(parameter)])
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = moved.setdefault(id(buffer), copy(buffer))


def batch_like(batch: Any) -> Any:
    """The batch with its tensors on the pretend device, as an engine moves them."""
    if isinstance(batch, Tensor):
        return like(batch)
    kind: Any = type(batch)
    if isinstance(batch, Mapping):
        return kind({key: batch_like(value) for key, value in batch.items()})
    if isinstance(batch, list | tuple):
        moved = map(batch_like, batch)
        return kind(*moved) if hasattr(batch, "_fields") else kind(moved)
    return batch


def tensors(tree: Any) -> Iterable[Tensor]:
    """The tensors in tuples, lists and dicts of them."""
    return (leaf for leaf in trees.leaves(tree) if isinstance(leaf, Tensor))


def _as_one(operator: Any) -> Callable[..., Tensor]:
    """The operator as it is; a fake mode knows its result's shape without the formula."""

    def kernel(*arguments: Tensor) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            result: Tensor = operator(*arguments)
        return result

    return kernel


def _dropout(values: Tensor, p: float, train: bool) -> Tensor:
    """Dropout with the boolean mask of a GPU; on the CPU torch multiplies by one of the values' own type."""
    return torch.native_dropout(values, p, train)[0] if train and p else values


def _make_tensors_by_way_of_the_cpu() -> None:
    """`torch.tensor(values, device=...)` fills real memory, which the pretend device has not."""
    make = torch.tensor

    def tensor(data: Any, *, device: Any = None, **options: Any) -> Tensor:
        if device is None or torch.device(device).type != DEVICE:
            return make(data, device=device, **options)
        requires_grad = options.pop("requires_grad", False)
        return make(data, **options).to(device).requires_grad_(requires_grad)

    routed: Any = tensor
    torch.tensor = routed
