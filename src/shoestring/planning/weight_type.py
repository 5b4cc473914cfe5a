"""The type of frozen weights, where the option `weights` leaves it open, and the precision that they compute in."""

from collections.abc import Sequence

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
        supported = _trainable(loaded, target.device)
        weights = requested.precision or ("bf16" if "bf16" in supported else "fp16" if "fp16" in supported else "fp32")
    return loaded.replace(weights=weights)


def precision_of_frozen_weights(loaded: LoadedRecipe, device: Device) -> Precision | None:
    """Return the 16-bit type of frozen weights, in which the device computes; None without such weights.

    Without autocast they would compute in that type as well, but without the loss scaler that fp16 needs. It is also
    the precision of adapters in bf16: bf16, or fp32 on a device without it.
    """
    adaptation = loaded.adaptation
    if adaptation.lora_r is None:
        return None
    supported = _trainable(loaded, device)
    if adaptation.lora_dtype == "bf16":
        return supported[-1]
    return next((name for name in supported if name == adaptation.weights and name != "fp32"), None)


def _trainable(loaded: LoadedRecipe, device: Device) -> Sequence[Precision]:
    """Return the precisions of the device, without fp16 for adapters in bf16, whose gradients no scaler takes."""
    needs_range = loaded.adaptation.lora_dtype == "bf16"
    return [name for name in device.precisions if not (needs_range and name == "fp16")]
