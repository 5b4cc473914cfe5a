"""cuDNN's benchmark mode, which times its algorithms for each input shape, and never ends if shapes keep changing."""

from shoestring.base.settings import Settings
from shoestring.recipe.parts import Parts

NOTE = (
    "cudnn_benchmark is off: the recipe's samples differ in length, and cuDNN would benchmark its algorithms, with "
    "their workspace memory, for every new length"
)


def uses_cudnn_benchmark(settings: Settings, recipe: object) -> bool:
    """Return whether cuDNN benchmarks its algorithms: if the setting is on and the batches' shapes do not vary."""
    return settings.cudnn_benchmark and Parts.from_recipe(recipe).data.length is None
