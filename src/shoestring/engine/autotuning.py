"""cuDNN's trying of its algorithms is done for each new shape: for batches of ever new shapes it never ends."""

from shoestring.recipe.parts import Parts
from shoestring.settings import Settings

NOTE = (
    "cudnn_benchmark is off: the recipe's samples are of different lengths, and cuDNN would try its algorithms, "
    "with as much memory as they take, at every new one"
)


def autotunes(settings: Settings, recipe: object) -> bool:
    """Whether cuDNN is to try: where it was asked for and the shapes of the batches do not change."""
    return settings.cudnn_benchmark and Parts.of(recipe).length is None
