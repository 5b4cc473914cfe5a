"""`hf:PATH_OR_NAME`: the model of any Hugging Face configuration.

The recipe is for estimates and plans: it loads no weights and has no data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from shoestring.base import config
from shoestring.base.errors import UsageError
from shoestring.base.packages import requirements
from shoestring.recipe.option_notes import Cheaper

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

EXTRA = "huggingface"


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `hf:`, and their effect on training and memory."""

    head: Annotated[
        str | None, "a task (text-classification, masked-lm, ...) or a class of transformers; none: the configuration's"
    ] = None
    seq_len: Annotated[
        int,
        "tokens in each sample: the maximum length in the data, at most the model's positions",
        Cheaper("shorter sequences"),
    ] = 512
    image_size: Annotated[int | None, "side of an image in pixels; none: the configuration's, else 224"] = None
    audio_seconds: Annotated[float, "length of the longest audio, for models that take waveforms"] = 10.0
    attention: Annotated[Literal["sdpa", "eager"], "torch's fused attention, or a full matrix of scores"] = "sdpa"
    loss_chunk: Annotated[
        int | None,
        "tokens whose logits exist at the same time, for causal language models; none: the model's own loss",
        Cheaper("the loss in smaller chunks, which changes no more than rounding", changes_learning=False),
    ] = None
    optimizer: Annotated[
        Literal["adamw", "adam", "sgd", "rmsprop", "adagrad", "adafactor"],
        "torch's optimizer, with its default settings",
    ] = "adamw"
    epochs: Annotated[int, "passes over the training data"] = 1
    effective_batch: Annotated[int, "samples in one update"] = 8
    seed: Annotated[int, "seed of the initialization, sample order and dropout"] = 0

    def __post_init__(self) -> None:
        problems = config.too_small(vars(self), {"seq_len": 1, "loss_chunk": 1, "image_size": 1, "audio_seconds": 1})
        if problems:
            raise UsageError("options of hf: cannot be used", problems=problems)


class HuggingFace:
    """The model of a Hugging Face configuration, with the head that its architecture declares."""

    source: ClassVar[str] = ""
    """A configuration file, a folder with one, or a name on the hub."""
    length_option = "seq_len"
    is_pretrained = True  # only its configuration is read, but it stands for the pretrained model that people fine-tune

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()

    @property
    def data_hint(self) -> str:
        """What to do to train this model."""
        return (
            "a language model is trained on your conversations with --set data=chats.jsonl; for another model, write a "
            "file mine.py of your own: `from shoestring.integrations.huggingface import recipe_class`, then "
            f"`class Mine(recipe_class({self.source!r})):` with a method data() that returns a map-style dataset; a "
            "sample is a dict of tensors with the names of batch(1), without its first dimension. Its weights begin "
            "at random; docs/guides/recipe.md shows such a file"
        )

    @property
    def capacity(self) -> float:
        """The tokens of a sample; of images and audio all samples have this length."""
        return self.options.seq_len

    def length_source(self) -> str:
        return f"the tokenizer of {self.source}"

    def model(self) -> nn.Module:
        """Return the model in training mode, in fp32."""
        requirements.require(EXTRA, "transformers")
        from shoestring.integrations.huggingface import build

        return build.build_model(self.source, self.options)

    def batch(self, size: int) -> dict[str, Any]:
        """Return `size` samples of `seq_len` tokens, or images, or audio, with the labels that the head requires."""
        requirements.require(EXTRA, "transformers")
        from shoestring.integrations.huggingface import batches

        return batches.make(self.source, size, self.options)

    def loss(self, model: nn.Module, batch: dict[str, Any]) -> Tensor:
        """Return the head's own mean loss, computed in chunks where `loss_chunk` is set."""
        from shoestring.integrations.huggingface import chunks, diffusion, library_errors, losses

        if self.options.loss_chunk:
            return chunks.chunked_loss(model, batch, self.options.loss_chunk)
        compute = diffusion.loss if "timestep" in batch else losses.loss
        with library_errors.explained(f"{type(model).__name__} cannot be run", self.source):
            return compute(model, batch)

    def notes(self) -> list[str]:
        """Return what was chosen for the model and its samples."""
        from shoestring.integrations.huggingface import notes

        return notes.notes(self.source, self.options)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Return the chosen optimizer over the trainable parameters."""
        import torch

        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer: Optimizer = getattr(torch.optim, _OPTIMIZERS[self.options.optimizer])(trainable, lr=1e-4)
        return optimizer


_OPTIMIZERS = {
    "adamw": "AdamW",
    "adam": "Adam",
    "sgd": "SGD",
    "rmsprop": "RMSprop",
    "adagrad": "Adagrad",
    "adafactor": "Adafactor",
}
"""The classes in `torch.optim` by their names in the option."""


def recipe_class(source: str) -> type[HuggingFace]:
    """Return the recipe class of a configuration; it is a class because a recipe's only argument is its options."""
    return type("HuggingFace", (HuggingFace,), {"source": source, "__doc__": HuggingFace.__doc__})
