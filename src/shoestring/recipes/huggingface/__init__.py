"""`hf:PATH_OR_NAME`: the model of any Hugging Face configuration.

Enough to estimate and to plan: no weights are loaded, and there is no data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from shoestring import config
from shoestring.errors import UsageError
from shoestring.recipe import extras

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn
    from torch.optim import Optimizer

EXTRA = "huggingface"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What may be chosen, and what it means for learning and memory."""

    seq_len: Annotated[int, "tokens in each sample, the longest that the data can have"] = 512
    attention: Annotated[Literal["sdpa", "eager"], "torch's fused attention, or the square of scores"] = "sdpa"
    loss_chunk: Annotated[
        int | None, "tokens whose logits exist at once, of a causal language model; none for the model's own loss"
    ] = None
    optimizer: Annotated[
        Literal["adamw", "adam", "sgd", "rmsprop", "adagrad", "adafactor"], "torch's, with its default settings"
    ] = "adamw"
    epochs: Annotated[int, "passes over the training data"] = 1
    effective_batch: Annotated[int, "samples in one update"] = 8
    seed: Annotated[int, "decides initialisation, sample order and dropout"] = 0

    def __post_init__(self) -> None:
        problems = config.too_small(vars(self), {"seq_len": 1, "loss_chunk": 1})
        if problems:
            raise UsageError("options of hf: cannot be used", problems=problems)


class HuggingFace:
    """The model of a Hugging Face configuration, with the head that its architecture declares."""

    source: ClassVar[str] = ""
    """A configuration's file, a folder with one, or a name on the hub."""

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()

    def model(self) -> nn.Module:
        """The model in its training mode, in fp32."""
        extras.require(EXTRA, "transformers")
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


_OPTIMIZERS = {
    "adamw": _torchs("AdamW"),
    "adam": _torchs("Adam"),
    "sgd": _torchs("SGD"),
    "rmsprop": _torchs("RMSprop"),
    "adagrad": _torchs("Adagrad"),
    "adafactor": _torchs("Adafactor"),
}


def of(source: str) -> type[HuggingFace]:
    """The recipe of one configuration: a class, since options are all that an instance is made of."""
    return type("HuggingFace", (HuggingFace,), {"source": source, "__doc__": HuggingFace.__doc__})
