"""Weights to begin with, from where there are some."""

from pathlib import Path

from torch import nn

from shoestring.checkpoint.light import load_light
from shoestring.errors import UsageError
from shoestring.recipes.cloud import published


def load(source: Path, model: nn.Module) -> None:
    """Take the model's weights from `source`: the folder `best` or `light` of a run, or a .safetensors file with the
    names that GLF-CR's authors publish theirs under. A model without memory, only looked at, stays as it is.

    Raises UsageError where there is nothing, CheckpointError for weights of another model.
    """
    if not source.exists():
        raise UsageError(
            f"weights_from={source}: there is nothing", hint=f"give a run's best or light, or a file; {published.HOW}"
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        return
    if source.is_dir():
        load_light(source, model)
    else:
        published.load(source, model)
