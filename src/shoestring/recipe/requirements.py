"""The extras of Shoestring that a recipe with its options requires."""

from shoestring.recipe.finding import HUGGING_FACE
from shoestring.recipe.options import LoadedRecipe

_EXTRAS_OF_OPTIONS = (
    ("quantization", ("nf4",), "bitsandbytes"),
    ("optimizer_states", ("8bit", "paged", "paged_8bit"), "bitsandbytes"),
)
"""An option, the values of it that need an extra, and the extra. It counts whether the recipe or Shoestring has it."""


def required_extras(loaded: LoadedRecipe) -> frozenset[str]:
    """Return the extras of Shoestring that a recipe with these options requires."""
    extras = {loaded.name} if loaded.is_built_in else set()
    if loaded.name.startswith(HUGGING_FACE):
        extras.add("huggingface")
    if loaded.adaptation.lora_r is not None:
        extras.add("huggingface")  # it includes peft
    extras |= {extra for option, values, extra in _EXTRAS_OF_OPTIONS if loaded.options.get(option) in values}
    return frozenset(extras)
