"""The check for settings that can be estimated, but not used for training."""

from collections.abc import Mapping

from shoestring.base.errors import UsageError
from shoestring.base.packages import requirements
from shoestring.base.settings import Settings
from shoestring.recipe.adaptation import Adaptation

TRAINED: Mapping[bool, tuple[str, ...]] = {
    False: ("ddp", "zero1", "zero2", "zero3"),
    True: ("ddp", "zero2", "zero3"),
}
"""The values of `sharding` that several GPUs can train with, in the engine and (True) in a library's trainer."""

DIVIDING_WEIGHTS = ("zero2", "zero3")
"""The values of `sharding` with which FSDP2 divides the weights by rows, so that a GPU has only some of them."""

_WHOLE_WEIGHTS = {
    "compile": ("no", "compiled code and CUDA graphs contain no exchange of weights"),
    "quantization": ("none", "4-bit and 8-bit weights have scales that cannot be divided by rows"),
    "optimizer_states": ("own", "8-bit states have scales that cannot be divided by rows"),
    "memory_format": ("contiguous", "FSDP2 divides contiguous weights alone"),
}
"""The settings and options that need whole weights, each with its usual value and the reason."""

_CONTIGUOUS = {
    "optimizer_states": ("own", "bitsandbytes makes the weights and states that it updates contiguous"),
}
"""The settings and options that need contiguous weights, each with its usual value and the reason."""


def require_trainable(settings: Settings, adaptation: Adaptation | None = None) -> None:
    """Raise UsageError naming the values that the engine does not support, or a missing extra, before a run starts."""
    adaptation = adaptation or Adaptation()
    if problems := sharding_problems(settings, adaptation):
        raise UsageError(
            f"training with sharding={settings.sharding} does not support these settings",
            problems=problems,
            hint="set sharding=zero1 or ddp, whose GPUs have whole weights",
        )
    if problems := channels_last_problems(settings, adaptation):
        raise UsageError(
            "training with memory_format=channels_last does not support these settings",
            problems=problems,
            hint="set memory_format=contiguous",
        )
    if settings.precision == "fp16" and adaptation.lora_r is not None and adaptation.lora_dtype == "bf16":
        # https://github.com/pytorch/pytorch/issues/127176
        raise UsageError(
            "lora_dtype=bf16 cannot be trained with precision=fp16: torch's loss scaler takes no bf16 gradients",
            hint="set lora_dtype=fp32, or precision=bf16 on a GPU that computes in it",
        )
    if adaptation.quantization != "none" or adaptation.optimizer_states != "own":
        requirements.require("bitsandbytes", "bitsandbytes")


def sharding_problems(settings: Settings, adaptation: Adaptation) -> list[str]:
    """Return the settings that cannot be combined with weights that FSDP2 divides; none for another sharding."""
    return _problems(settings, adaptation, _WHOLE_WEIGHTS) if settings.sharding in DIVIDING_WEIGHTS else []


def channels_last_problems(settings: Settings, adaptation: Adaptation) -> list[str]:
    """Return the settings that cannot be combined with weights in channels_last; none for contiguous ones."""
    if settings.memory_format != "channels_last":
        return []
    return [*_problems(settings, adaptation, _CONTIGUOUS), *sharding_problems(settings, adaptation)]


def _problems(settings: Settings, adaptation: Adaptation, table: Mapping[str, tuple[str, str]]) -> list[str]:
    values = {**vars(settings), **vars(adaptation)}
    return [
        f"{name}={values[name]}: {reason}"
        for name, (usual, reason) in table.items()
        if values[name] not in (None, usual)
    ]
