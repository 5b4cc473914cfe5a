"""`hf:PATH_OR_NAME`: the model of any Hugging Face configuration.

The recipe is for estimates and plans: it loads no weights and has no data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from shoestring.base import config
from shoestring.base.errors import UsageError
from shoestring.base.packages import requirements
from shoestring.recipe.option_notes import Cheaper

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

EXTRA = "huggingface"
Loop: TypeAlias = Literal["shoestring", "trainer", "accelerate", "plain"]
BETA = 0.1
"""Of DPO. Memory and time do not depend on it."""


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
    attention: Annotated[
        Literal["sdpa", "library", "eager"],
        "torch's fused attention, of repeated keys and values where heads share them; library: as transformers calls "
        "it for a batch without padding, which shares them in the kernel; eager: a full matrix of scores",
    ] = "sdpa"
    method: Annotated[
        Literal["sft", "dpo"],
        "the model's own loss, or direct preference optimization of pairs of sequences, with the adapter switched off "
        "as the reference",
    ] = "sft"
    second_model: Annotated[
        bool, "the reference of method=dpo is a second model in memory, as it has to be if all weights are trained"
    ] = False
    trained_by: Annotated[
        Loop,
        "whose code makes the updates, which decides how long the outputs exist, the order of samples of different "
        "lengths and how several GPUs exchange gradients: shoestring; trainer: transformers' Trainer; accelerate: a "
        "script with Accelerator that holds the outputs; plain: a script that holds them",
    ] = "shoestring"
    transformers: Annotated[
        str | None,
        "version of transformers whose loss of a causal language model is assumed, such as 4.48; none: the installed",
    ] = None
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
        if self.transformers is not None and not re.fullmatch(r"[45](\.\d+){1,2}", self.transformers):
            problems.append(f"transformers={self.transformers}: must be a version such as 4.48")
        own_loss = self.method == "sft" and self.loss_chunk is None
        if not own_loss and (self.transformers is not None or self.trained_by != "shoestring"):
            problems.append("transformers= and trained_by= are about the model's own loss, without loss_chunk and dpo")
        if self.second_model and self.method != "dpo":
            problems.append("second_model=yes: only method=dpo has a reference")
        if problems:
            raise UsageError("options of hf: cannot be used", problems=problems)


class HuggingFace:
    """The model of a Hugging Face configuration, with the head that its architecture declares."""

    source: ClassVar[str] = ""
    """A configuration file, a folder with one, or a name on the hub."""
    length_option = "seq_len"
    adaptation_defaults: ClassVar[Mapping[str, Any]] = {"weights": "auto"}  # as libraries load what adapters freeze
    is_pretrained = True  # only its configuration is read, but it stands for the pretrained model that people fine-tune

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self._outputs: Any = None
        """The outputs that a script would still hold."""

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
    def other_loop(self) -> bool:
        """Whether the updates are those of a library or of a script."""
        return self.options.trained_by != "shoestring"

    @property
    def capacity(self) -> float:
        """The tokens of a sample; of images and audio all samples have this length."""
        return self.options.seq_len

    @property
    def blocks(self) -> Callable[[nn.Module], list[nn.Module]] | None:
        """The blocks that checkpointing recomputes beside a second model; None where they are found in the model."""
        return trained_blocks if self.options.second_model else None

    def length_source(self) -> str:
        return f"the tokenizer of {self.source}"

    def model(self) -> nn.Module:
        """Return the model in training mode, in fp32."""
        requirements.require(EXTRA, "transformers")
        from shoestring.integrations.huggingface import build

        return build.build_model(self.source, self.options)

    def batch(self, size: int) -> dict[str, Any]:
        """Return `size` samples of `seq_len` tokens, or pairs of them, or images, or audio, with their labels."""
        requirements.require(EXTRA, "transformers")
        from shoestring.integrations.huggingface import batches

        return batches.make(self.source, size, self.options)

    def loss(self, model: nn.Module, batch: dict[str, Any]) -> Tensor:
        """Return the head's own mean loss, computed in chunks where `loss_chunk` is set, or the mean loss of pairs."""
        from shoestring.integrations.huggingface import chunks, diffusion, library_errors, losses, preference

        options = self.options
        if options.method == "dpo":
            chosen, rejected = preference.rewards(
                model, batch, beta=BETA, loss_chunk=options.loss_chunk, hint="set lora_r=16, or second_model=yes"
            )
            return preference.mean_loss(chosen, rejected)
        if options.loss_chunk:
            return chunks.chunked_loss(model, batch, options.loss_chunk)
        hint = library_errors.hint_at_samples(model, batch)
        with library_errors.explained(f"{_class_name(model)} cannot be run with the samples of hf:", hint):
            if "timestep" in batch:
                return diffusion.loss(model, batch)
            value, outputs = losses.loss(model, batch, loop=options.trained_by, version=options.transformers)
        # The previous ones are released when these exist, as a variable of a loop is.
        self._outputs = outputs if options.trained_by in ("accelerate", "plain") else None
        return value

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


def _class_name(model: Any) -> str:
    """Return the name of the model's class; peft's is about the adapters around it."""
    return type(model.get_base_model() if hasattr(model, "get_base_model") else model).__name__


_OPTIMIZERS = {
    "adamw": "AdamW",
    "adam": "Adam",
    "sgd": "SGD",
    "rmsprop": "RMSprop",
    "adagrad": "Adagrad",
    "adafactor": "Adafactor",
}
"""The classes in `torch.optim` by their names in the option."""


def trained_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of the model that is trained, without those of the reference beside it."""
    from shoestring.techniques import checkpointing

    untyped_model: Any = model
    return checkpointing.blocks(untyped_model.trained, None)


def recipe_class(source: str) -> type[HuggingFace]:
    """Return the recipe class of a configuration; it is a class because a recipe's only argument is its options."""
    return type("HuggingFace", (HuggingFace,), {"source": source, "__doc__": HuggingFace.__doc__})
