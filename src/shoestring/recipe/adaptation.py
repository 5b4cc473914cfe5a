"""The options that adapt the model and the optimizer of any recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from shoestring.base import config
from shoestring.base.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Adaptation:
    """Options that adapt any recipe's model and optimizer after they are built. They change the training result, so by
    default nothing is adapted. If a recipe has its own option of the same name, the recipe implements it.
    """

    lora_r: Annotated[int | None, "rank of LoRA adapters; none trains every weight"] = None
    """The adapters are those of peft. The weights to use, in `best/` and `light/`, are then a folder with a peft
    adapter."""
    lora_alpha: Annotated[int | None, "LoRA's scale times its rank; by default twice the rank"] = None
    lora_targets: Annotated[
        str,
        "modules with adapters: attention, mlp, linear (every linear layer but the head), or a comma-separated list of "
        "name endings",
    ] = "attention"
    lora_experts: Annotated[
        Literal["yes", "no", "peft"],
        "adapters for a mixture's experts that are stacked in one parameter, where lora_targets names them (mlp, "
        "linear, name endings); peft: what peft makes of the names of linear layers",
    ] = "yes"
    """An adapter of stacked experts is added to their weights in each forward, which takes the memory of one block's
    experts, and keeps them for backward unless there is activation checkpointing. `peft` is what runs of earlier
    versions have: their adapters keep their names."""
    lora_dropout: Annotated[float, "dropout of the adapters' inputs"] = 0.0
    lora_rslora: Annotated[bool, "LoRA's scale divided by the square root of the rank, not by the rank (rsLoRA)"] = (
        False
    )
    lora_dora: Annotated[bool, "adapters that also learn the norm of each output of a layer (DoRA)"] = False
    lora_dtype: Annotated[
        Literal["fp32", "bf16"], "type of the adapters, and so of their gradients and optimizer states"
    ] = "fp32"
    """bf16 has half the bytes and 8 bits of precision. It cannot be trained with `precision=fp16`: the loss scaler of
    torch does not take gradients in bf16 on a GPU."""
    quantization: Annotated[Literal["none", "nf4"], "frozen weights in 4 bits, packed by bitsandbytes"] = "none"
    """4-bit weights are not trained, so `lora_r` has to be set."""
    unquantized: Annotated[
        Literal["fp32", "own"],
        "type of what stays unpacked beside 4-bit weights (norms, embeddings, head): fp32, or own: that of `weights`",
    ] = "fp32"
    """fp32 is what peft's `prepare_model_for_kbit_training` does. With own the activations between the layers take half
    the bytes where `weights` is a 16-bit type."""
    double_quantization: Annotated[bool, "scales of 4-bit weights in 8 bits"] = False
    weights: Annotated[
        Literal["auto", "fp32", "fp16", "bf16"],
        "type of the stored weights, independent of autocast; auto: 16 bits for the frozen weights of LoRA on a GPU, "
        "else fp32",
    ] = "fp32"
    optimizer_states: Annotated[
        Literal["own", "8bit", "paged", "paged_8bit"],
        "the optimizer's own states, or those of bitsandbytes' AdamW: in 8 bits, paged to host memory, or both",
    ] = "own"
    """The states of bitsandbytes need the extra `bitsandbytes`."""

    def __post_init__(self) -> None:
        problems = config.too_small(vars(self), {"lora_r": 1, "lora_alpha": 1})
        if not 0 <= self.lora_dropout < 1:
            problems.append(f"lora_dropout={self.lora_dropout}: must be at least 0 and less than 1")
        if self.quantization != "none" and self.lora_r is None:
            problems.append("quantization=nf4: 4-bit weights cannot be trained, so LoRA adapters are needed (lora.r)")
        if problems:
            raise UsageError("the model cannot be adapted", problems=problems, hint="for example --set lora.r=8")
