"""Loading of initial weights."""

from pathlib import Path

from torch import nn

from shoestring.checkpoint.light import load_light
from shoestring.errors import UsageError
from shoestring.recipes.cloud.published_weights import CONVERSION_HINT, load_published


def load_weights(source: Path, model: nn.Module) -> None:
    """Load the model's weights from `source`: the folder `best` or `light` of a run, or a published .safetensors file.

    A file has the tensor names of the authors of GLF-CR. A model on the meta device, which has no memory, is unchanged.

    Raises UsageError if `source` does not exist, CheckpointError for weights of another model.
    """
    if not source.exists():
        raise UsageError(
            f"weights_from={source} does not exist",
            hint=f"use the folder best or light of a run, or a .safetensors file; {CONVERSION_HINT}",
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        return
    if source.is_dir():
        load_light(source, model)
    else:
        load_published(source, model)
