"""Which tensors `loss()` itself changes, and what that means: it is called for each microbatch, not for each update.

The first update of a run is observed: the tensors of the model and of the recipe's object that no optimizer steps are
compared before and after it. Known running statistics, such as those of BatchNorm, are left out.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from shoestring.techniques import norms
from shoestring.techniques.slots import buffers
from shoestring.training.checkpoint.checksums import checksums
from shoestring.training.checkpoint.divided import own
from shoestring.training.checkpoint.trained import computed_weights
from shoestring.training.engine.untrained import UntrainedTensors, has_values

_LIBRARIES = ("torch", "torchao", "torchvision", "transformer_engine", "bitsandbytes")
"""Packages whose modules change only statistics of their own: of norms, quantization, spectral normalization."""
_CONTAINERS = (nn.Module, nn.ModuleDict, nn.ModuleList, nn.Sequential)
"""Classes of torch whose buffers the recipe has registered."""
_STATISTICS = ("running_mean", "running_var", "running_std", "num_batches_tracked", "amax_history")
_TABLES = ("inv_freq", "original_inv_freq", "cos_cached", "sin_cached")
"""Rotary positions, which some models compute again for longer samples."""
_MOST_NAMES = 3


class LossChanges:
    """The tensors of a model and a recipe before an update."""

    def __init__(self, model: nn.Module, recipe: Any, untrained: UntrainedTensors) -> None:
        self._model, self._recipe, self._untrained = model, recipe, untrained
        self._before = self._values()
        self._after = self._before

    def observe(self) -> None:
        """Compare the tensors after the losses of the update."""
        self._after = self._values()

    @property
    def unrepeatable(self) -> list[str]:
        """The frozen parameters and attributes of the model that the losses have changed."""
        return [name for name in self._changed() if name in self._untrained.names]

    def notes(self, *, has_hook: bool) -> list[str]:
        """Return notes for the user.

        Buffers of a model whose recipe `has_hook` are not named: a loss may fill them for `after_update`.
        """
        untrained = self._untrained.names if has_hook else self._before
        changed = [name for name in self._changed() if name in untrained or name.startswith("self.")]
        own_names = [name for name in changed if name.startswith("self.")]
        names = [name for name in changed if name not in own_names]
        notes = []
        if names:
            notes.append(
                f"loss() changes {_listed(names)} of the model: once for each microbatch, also in evaluations and when "
                "an update is repeated after out-of-memory, so that another microbatch changes what is learnt; do it "
                "in after_update(model), which is called once after each update"
            )
        if own_names:
            notes.append(
                f"loss() changes {_listed(own_names)} of the recipe, which no checkpoint contains: a resumed run "
                "continues with its first values; make it a buffer or a module of the model"
            )
        return notes

    def _changed(self) -> list[str]:
        # A name that is missing later is that of a result with a gradient, such as a weight that a hook computes.
        return sorted(name for name, value in self._before.items() if self._after.get(name, value) != value)

    def _values(self) -> dict[str, int]:
        tensors = {name: own(tensor) for name, tensor in self._compared_tensors() if has_values(own(tensor))}
        return {
            **dict(zip(tensors, checksums(list(tensors.values())), strict=True)),
            **self._untrained.checksums(),
        }

    def _compared_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the model's buffers that are no known statistics, and the tensors of the recipe's object."""
        for path, module in self._model.named_modules():
            is_of_library = type(module).__module__.partition(".")[0] in _LIBRARIES
            if isinstance(module, norms.RUNNING) or (is_of_library and type(module) not in _CONTAINERS):
                continue
            vectors = _vectors_of_spectral_norm(module)
            for name, buffer in buffers(module).items():
                if buffer is not None and name not in (*_STATISTICS, *_TABLES, *vectors):
                    yield f"{path}.{name}".removeprefix("."), buffer
        in_model = {id(tensor) for tensor in (*self._model.parameters(), *self._model.buffers())}
        for name, value in getattr(self._recipe, "__dict__", {}).items():
            if isinstance(value, nn.Module) and value is not self._model:
                for inner, buffer in value.named_buffers():
                    is_known = inner.rpartition(".")[2] in (*_STATISTICS, *_TABLES)
                    if id(buffer) not in in_model and not is_known:
                        yield f"self.{name}.{inner}", buffer
            elif isinstance(value, Tensor) and not value.requires_grad and id(value) not in in_model:
                yield f"self.{name}", value


def _vectors_of_spectral_norm(module: nn.Module) -> list[str]:
    """Return the names of the buffers of the older `torch.nn.utils.spectral_norm`, which its hook changes."""
    return [f"{name}_{letter}" for name in computed_weights(module) for letter in "uv"]


def _listed(names: list[str]) -> str:
    omitted = [f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
    return ", ".join([*names[:_MOST_NAMES], *omitted])
