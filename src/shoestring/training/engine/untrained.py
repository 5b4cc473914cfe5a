"""The tensors of a model that no optimizer steps and that the recipe may change itself, such as those of a teacher.

These are frozen parameters, and tensors in attributes of modules. torch does not count changes through `.data`. So
checksums of their values are compared with those of the start whenever a state is saved, and what has changed once
belongs to the state.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from shoestring.training.checkpoint.checksums import checksums
from shoestring.training.checkpoint.divided import divide_as, own
from shoestring.training.checkpoint.trained import (
    attribute_tensors,
    frozen_parameters,
    load_attributes,
    reset_attributes,
    saved_attributes,
    trained_state,
)


class UntrainedTensors:
    """Such tensors of one model."""

    def __init__(self, model: nn.Module, *, saves_new: bool = False) -> None:
        """With `saves_new`, attributes that get their first tensor later are a part of the state as well."""
        self._model, self._saves_new = model, saves_new
        self._frozen = [*frozen_parameters(model)]
        self._attributes = [*attribute_tensors(model)]
        self._first = self.checksums()
        self.changed = set[str]()
        """The names of those that belong to the state."""

    @property
    def names(self) -> list[str]:
        """The names of those that the model had at the start."""
        return [*self._first]

    def checksums(self) -> dict[str, int]:
        """Return the checksums of the tensors now, by name; of a divided one that of the rows of this process."""
        tensors = {name: tensor for name, tensor in self._tensors().items() if has_values(tensor)}
        return dict(zip(tensors, checksums([own(tensor) for tensor in tensors.values()]), strict=True))

    def observe(self) -> None:
        """Add those that have changed since the start."""
        self.changed |= {name for name, value in self.checksums().items() if self._first.get(name) != value}

    def pack(self) -> dict[str, Any]:
        """Return the section `model` of a checkpoint: what is trained, and what has changed."""
        attributes = attribute_tensors(self._model)
        return {
            **trained_state(self._model, self.changed),
            **{name: tensor for name, tensor in attributes.items() if name in self.changed},
        }

    @torch.no_grad()
    def restore(self, saved: Mapping[str, Any], build: Callable[[], nn.Module]) -> None:
        """Load the attributes of the section `saved`, whose parameters and buffers are loaded already.

        Those that a checkpoint lacks had not changed when it was saved: if they have since, they get their values of
        the start, which the model has that `build` returns; what has its first tensor since then has none again.
        """
        load_attributes(self._model, saved)
        self.changed = {*saved_attributes(self._model, saved), *(name for name in self._frozen if name in saved)}
        later = {name for name, value in self.checksums().items() if self._first.get(name) != value} - self.changed
        if not later:
            return
        initial = build()
        values: dict[str, Tensor] = {**frozen_parameters(initial), **attribute_tensors(initial)}
        tensors = self._tensors()
        for name in later & values.keys() & set(self._frozen):
            own(tensors[name].detach()).copy_(own(divide_as(values[name].detach(), tensors[name])))
        load_attributes(self._model, {name: values[name] for name in later & values.keys() - set(self._frozen)})
        reset_attributes(self._model, initial, later - values.keys())

    def _tensors(self) -> dict[str, Tensor]:
        parameters = dict(self._model.named_parameters(remove_duplicate=False))
        attributes = attribute_tensors(self._model)
        names = attributes if self._saves_new else [name for name in self._attributes if name in attributes]
        return {
            **{name: parameters[name] for name in self._frozen if name in parameters},
            **{name: attributes[name] for name in names},
        }


def has_values(tensor: Tensor) -> bool:
    """Return whether a checksum of the tensor's bits can be computed."""
    return tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_nested and not tensor.is_quantized
