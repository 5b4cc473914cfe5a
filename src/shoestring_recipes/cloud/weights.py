"""Loading of initial weights."""

from pathlib import Path

from torch import nn

from shoestring.base.errors import UsageError
from shoestring.training.checkpoint.foreign import check_weights, missing_files
from shoestring.training.checkpoint.light import has_weights, load_light
from shoestring_recipes.cloud.published_weights import load_published


def load_weights(source: Path, model: nn.Module) -> None:
    """Load the model's weights from `source`: the folder `best` or `light` of a run, or a file of the published ones.

    A model on the meta device, which has no memory, is unchanged; the files are checked then, if there are any.

    Raises UsageError if `source` does not exist, CheckpointError for weights of another model.
    """
    if not source.exists():
        raise UsageError(
            f"weights_from={source} does not exist",
            hint="use the folder best or light of a run, or a file: CR_net.pth, or one in safetensors",
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        if not missing_files(source):
            check_weights(source)
    elif source.is_dir() and has_weights(source):
        load_light(source, model)
    else:
        load_published(source, model)


def source_notes(source: Path | None) -> list[str]:
    """Return notes about the initial weights."""
    if source is None:
        return ["training starts from random weights"]
    missing = f", but it cannot: {problem}" if source.exists() and (problem := missing_files(source)) else ""
    return [f"training starts from the weights in {source}{missing}"]
