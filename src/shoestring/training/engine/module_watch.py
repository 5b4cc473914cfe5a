"""Which inputs and outputs of a model's modules are finite, in the order of a forward pass.

Nothing is read from the device until the pass is over, so a GPU does not wait for each module.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from shoestring.techniques import trees


@dataclass(frozen=True, kw_only=True)
class Place:
    """The beginning or the end of a module's forward."""

    name: str
    """The name of the module."""
    is_output: bool
    """Whether it is the end."""
    is_leaf: bool
    """Whether the module has no submodules."""
    is_finite: bool
    """Whether all floating-point numbers in the inputs, or at the end in the outputs, are finite."""
    within: Sequence[str]
    """The modules that had begun and not ended, from the outer to the inner, without the module itself."""
    returned: Sequence[str]
    """The modules that have ended last before this, from the inner to the outer: each contains the one before."""

    @property
    def text(self) -> str:
        return f"the {'output' if self.is_output else 'input'} of {self.name or 'the model'}"


class ModuleWatch:
    """A context that watches the `modules`, by name."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._modules = modules
        self._hooks = ExitStack()
        self._running: list[str] = []
        self.returned: tuple[str, ...] = ()
        """The modules that have ended last, as `Place.returned`."""
        self._starts_chain = False
        self._places: list[tuple[dict[str, Any], Tensor | bool]] = []

    def __enter__(self) -> Self:
        for name, module in self._modules.items():
            self._hooks.enter_context(self._watching(name, module))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._hooks.close()

    @property
    def running(self) -> tuple[str, ...]:
        """The modules that have begun and not ended, from the inner to the outer."""
        return tuple(reversed(self._running))

    def places(self) -> list[Place]:
        """Return what was watched so far, in its order."""
        flags = [flag for _, flag in self._places if isinstance(flag, Tensor)]
        values = iter(torch.stack([flag.to(flags[0].device) for flag in flags]).tolist() if flags else [])
        return [
            Place(**facts, is_finite=next(values) if isinstance(flag, Tensor) else flag) for facts, flag in self._places
        ]

    @contextmanager
    def _watching(self, name: str, module: nn.Module) -> Iterator[None]:
        def begin(_: nn.Module, args: Any, kwargs: Any) -> None:
            self._add(name, module, (args, kwargs), is_output=False)
            self._running.append(name)
            self._starts_chain = True

        def end(_: nn.Module, __: Any, output: Any) -> None:
            self._running.pop()
            self._add(name, module, output, is_output=True)
            self.returned = (name,) if self._starts_chain else (*self.returned, name)
            self._starts_chain = False

        hooks = (module.register_forward_pre_hook(begin, with_kwargs=True), module.register_forward_hook(end))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _add(self, name: str, module: nn.Module, values: Any, *, is_output: bool) -> None:
        facts = {
            "name": name,
            "is_output": is_output,
            "is_leaf": not any(True for _ in module.children()),
            "within": tuple(self._running),
            "returned": self.returned,
        }
        self._places.append((facts, _are_finite(values)))


def _are_finite(values: Any) -> Tensor | bool:
    """Return whether the floating-point tensors in nested `values` are finite, as a tensor on their device."""
    flags = [flag for leaf in trees.leaves(values) if (flag := _is_finite(leaf)) is not None]
    return torch.stack([flag.to(flags[0].device) for flag in flags]).all() if flags else True


def _is_finite(value: Any) -> Tensor | None:
    is_dense = isinstance(value, Tensor) and value.layout is torch.strided and not value.is_nested
    if not is_dense or not value.is_floating_point() or not value.numel() or value.element_size() < 2:
        return None
    low, high = torch.aminmax(value.detach())  # the maximum of values with a NaN is NaN
    return torch.isfinite(low) & torch.isfinite(high)
