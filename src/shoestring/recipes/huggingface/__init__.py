"""`hf:PATH_OR_NAME`: the model of any Hugging Face configuration, full or with LoRA, its base weights full or NF4.

Enough to estimate and to plan: no weights are loaded, and there is no data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from shoestring import config, extras
from shoestring.errors import QuestionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn
    from torch.optim import Optimizer

EXTRA = "huggingface"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What may be chosen, and what it means for learning and memory."""

    seq_len: Annotated[int, "tokens in each sample, the longest that the data can have"] = 512
    lora_r: Annotated[int | None, "rank of LoRA adapters; none trains every weight"] = None
    lora_alpha: Annotated[int | None, "LoRA's scale times its rank; by default twice the rank"] = None
    lora_targets: Annotated[str, "modules with adapters, by the ends of their names, with commas between"] = "attention"
    quantization: Annotated[Literal["none", "nf4"], "base weights in 4 bits, as bitsandbytes packs them"] = "none"
    double_quantization: Annotated[bool, "4-bit weights' scales in 8 bits"] = False
    weights: Annotated[Literal["fp32", "fp16", "bf16"], "base weights as they are stored, apart from autocast"] = "fp32"
    attention: Annotated[Literal["sdpa", "eager"], "torch's fused attention, or the square of scores"] = "sdpa"
    loss_chunk: Annotated[
        int | None, "tokens whose logits exist at once, of a causal language model; none for the model's own loss"
    ] = None
    optimizer: Annotated[
        Literal[
            "adamw", "adam", "sgd", "rmsprop", "adagrad", "adafactor", "adamw8bit", "paged_adamw8bit", "paged_adamw"
        ],
        "torch's, with its default settings, or bitsandbytes' with its states in 8 bits, or swapped out, or both",
    ] = "adamw"
    epochs: Annotated[int, "passes over the training data"] = 1
    effective_batch: Annotated[int, "samples in one update"] = 8
    seed: Annotated[int, "decides initialisation, sample order and dropout"] = 0

    def __post_init__(self) -> None:
        problems = config.too_small(vars(self), {"seq_len": 1, "lora_r": 1, "lora_alpha": 1, "loss_chunk": 1})
        if self.quantization != "none" and self.lora_r is None:
            problems.append("quantization=nf4: 4-bit weights cannot be trained themselves; set lora.r as well")
        if problems:
            raise QuestionError("options of hf: cannot be used", problems=problems, hint="for one, --set lora.r=8")


class HuggingFace:
    """The model of a Hugging Face configuration, with the head that its architecture declares."""

    source: ClassVar[str] = ""
    """A configuration's file, a folder with one, or a name on the hub."""

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()

    def model(self) -> nn.Module:
        """The model in its training mode, LoRA's weights and their gradients in fp32 whatever the base has."""
        extras.require(EXTRA, "transformers", *(["peft"] if self.options.lora_r else []))
        from shoestring.recipes.huggingface import build

        return build.model(self.source, self.options)

    def batch(self, size: int) -> dict[str, Tensor]:
        """`size` samples of `seq_len` tokens with the labels that the head takes."""
        extras.require(EXTRA, "transformers")
        from shoestring.recipes.huggingface import batches, configuration

        return batches.batch(configuration.read(self.source), size, self.options.seq_len)

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """The head's own loss, a mean; the same in pieces where `loss_chunk` is set."""
        if self.options.loss_chunk:
            from shoestring.recipes.huggingface import chunks

            return chunks.loss(model, batch, self.options.loss_chunk)
        outputs: Any = model(**batch)
        loss: Tensor = outputs.loss
        return loss

    def optimizer(self, model: nn.Module) -> Optimizer:
        """The chosen optimizer over what is trained."""
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        return _OPTIMIZERS[self.options.optimizer](trained)


def _torchs(name: str) -> Callable[[list[nn.Parameter]], Optimizer]:
    def make(trained: list[nn.Parameter]) -> Optimizer:
        import torch

        made: Optimizer = getattr(torch.optim, name)(trained, lr=1e-4)
        return made

    return make


def _bitsandbytes(*, bits: int, paged: bool) -> Callable[[list[nn.Parameter]], Optimizer]:
    def make(trained: list[nn.Parameter]) -> Optimizer:
        from shoestring.techniques.eightbit import BlockwiseAdamW

        return BlockwiseAdamW(trained, lr=1e-4, bits=bits, paged=paged)

    return make


_OPTIMIZERS = {
    "adamw": _torchs("AdamW"),
    "adam": _torchs("Adam"),
    "sgd": _torchs("SGD"),
    "rmsprop": _torchs("RMSprop"),
    "adagrad": _torchs("Adagrad"),
    "adafactor": _torchs("Adafactor"),
    "adamw8bit": _bitsandbytes(bits=8, paged=False),
    "paged_adamw8bit": _bitsandbytes(bits=8, paged=True),
    "paged_adamw": _bitsandbytes(bits=32, paged=True),
}


def of(source: str) -> type[HuggingFace]:
    """The recipe of one configuration: a class, since options are all that an instance is made of."""
    return type("HuggingFace", (HuggingFace,), {"source": source, "__doc__": HuggingFace.__doc__})
