"""What a recipe provides to export its trained model: its own formats, and the ONNX graph of its model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

Axes = Mapping[int, str]
"""The names of the dimensions of a tensor that may have any size, by their index."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The files that were written in a format, as another library loads them."""

    compared: Sequence[tuple[Tensor, Tensor]]
    """Outputs of the model, each with the output of what was loaded from the files, on the same inputs."""
    usage: str
    """Python code that loads the files and uses them; it runs in their folder, without Shoestring."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Entries of the model card's header, such as `library_name` and `pipeline_tag`."""
    notes: Sequence[str] = ()
    """Full sentences about the inputs and outputs, and the limits of the format."""
    tolerance: float = 1e-3
    """The largest difference, as a share of the largest output, beyond which the export is refused."""


def _all_tensors(model: nn.Module) -> Iterable[Tensor]:
    return model.state_dict().values()


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format of a recipe's own."""

    write: Callable[[nn.Module, Path, Sequence[Any]], Exported]
    """`write(model, folder, samples)` writes the model, in evaluation mode, to the empty folder, and may change it.
    `samples` are lists of one, two and three samples of the recipe's data, to compare the outputs on.
    """
    tensors: Callable[[nn.Module], Iterable[Tensor]] = _all_tensors
    """The tensors that will be written, to know the disk space before."""
    size: Callable[[nn.Module], int] | None = None
    """The bytes that will be written, where no tensors of the model have as many."""
    takes_adapters: bool = False
    """Whether `write` receives the model as it was trained, with adapters and 4-bit weights. Otherwise adapters are
    merged and the weights are fp32."""


@dataclass(frozen=True, kw_only=True)
class OnnxGraph:
    """A model as a graph of tensors."""

    module: nn.Module
    """Its forward maps the tensors of `inputs` to the tensors of `outputs`, in their order."""
    inputs: Mapping[str, Axes]
    """The names of the inputs with the dimensions that may have any size."""
    outputs: Mapping[str, Axes]
    """The names of the outputs, in the same way."""
    read: Callable[[Any], Sequence[Tensor]]
    """Returns the inputs of a batch."""
    compute: Callable[[Any], Sequence[Tensor]]
    """Returns the outputs of the model itself for a batch, with which those of the graph are compared."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """JSON that is needed to use the outputs, such as the names of the classes; stored as `graph.json`."""
    notes: Sequence[str] = ()
    """Full sentences about the inputs and outputs."""
