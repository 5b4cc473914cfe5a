"""The ONNX graph of the cloud-removal network."""

from copy import deepcopy

from torch import nn

from shoestring.recipe.exports import OnnxGraph
from shoestring_recipes.cloud.filtering import unrolled_filter
from shoestring_recipes.cloud.network import Fusion
from shoestring_recipes.cloud.scale import FULL_REFLECTANCE, MIN_DB


def graph(model: nn.Module) -> OnnxGraph:
    """Return the graph from a cloudy image and a radar image to the clear image."""
    module = deepcopy(model)
    for part in module.modules():
        if isinstance(part, Fusion):
            part.filter = unrolled_filter
    return OnnxGraph(
        module=module,
        inputs={"cloudy": {0: "batch"}, "radar": {0: "batch"}},
        outputs={"clear": {0: "batch"}},
        read=lambda batch: batch[:2],
        compute=lambda batch: [model(*batch[:2])],
        facts={"reflectance_divisor": FULL_REFLECTANCE, "radar_minimum_db": list(MIN_DB), "radar_maximum_db": 0},
        notes=[
            "`cloudy` (batch, 13, side, side) float32 are the bands of Sentinel-2, clipped to 0 to 10,000 and divided "
            "by 10,000. The side is fixed: the masks of the attention belong to it.",
            "`radar` (batch, 2, side, side) float32 are VV and VH of Sentinel-1 in decibels, clipped to -25 to 0 and "
            "-32.5 to 0 and scaled to 0 to 1.",
            "`clear` (batch, 13, side, side) float32 is the reflectance without clouds, on the scale of `cloudy`.",
        ],
    )
