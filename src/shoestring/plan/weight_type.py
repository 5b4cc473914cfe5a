"""The type of frozen weights, where the option `weights` leaves it open."""

from shoestring.hardware.catalog import Target
from shoestring.recipe.options import LoadedRecipe


def with_weight_type(loaded: LoadedRecipe, target: Target) -> LoadedRecipe:
    """Return the recipe with the type of its weights on `target` in place of `weights=auto`.

    The weights that LoRA freezes are stored in the 16-bit type that the GPU computes in: rounding them once to what
    every product would round them to anyway. Weights that are trained are fp32, and so are those on a CPU.
    """
    if loaded.options.get("weights") != "auto":
        return loaded
    weights = "fp32"
    if loaded.options.get("lora_r") is not None and target.device.kind != "cpu":
        weights = next((name for name in ("bf16", "fp16") if name in target.device.precisions), "fp32")
    return loaded.replace(weights=weights)
