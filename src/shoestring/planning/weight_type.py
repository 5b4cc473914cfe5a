"""The type of frozen weights, where the option `weights` leaves it open, and the precision that they compute in."""

from shoestring.base.settings import Precision, Settings
from shoestring.hardware.catalog import Device, Target
from shoestring.recipe.options import LoadedRecipe


def with_weight_type(loaded: LoadedRecipe, target: Target, requested: Settings) -> LoadedRecipe:
    """Return the recipe with the type of its weights on `target` in place of `weights=auto`.

    The weights that LoRA freezes are stored in the `requested` precision, or in the 16-bit type that the GPU computes
    in: rounding them once to what every product would round them to anyway. Weights that are trained are fp32, and so
    are those on a CPU.
    """
    if loaded.options.get("weights") != "auto":
        return loaded
    weights: Precision = "fp32"
    if loaded.options.get("lora_r") is not None and target.device.kind != "cpu":
        supported = target.device.precisions
        weights = requested.precision or ("bf16" if "bf16" in supported else "fp16" if "fp16" in supported else "fp32")
    return loaded.replace(weights=weights)


def precision_of_frozen_weights(loaded: LoadedRecipe, device: Device) -> Precision | None:
    """Return the 16-bit type of frozen weights, in which the device computes; None without such weights.

    Without autocast they would compute in that type as well, but without the loss scaler that fp16 needs.
    """
    adaptation = loaded.adaptation
    if adaptation.lora_r is None:
        return None
    return next((name for name in device.precisions if name == adaptation.weights and name != "fp32"), None)
