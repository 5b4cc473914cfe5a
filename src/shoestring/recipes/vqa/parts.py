"""The student's three parts: of published shapes with random weights, or as a pretrained model has them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from logging import ERROR
from typing import Any, Literal

from transformers import (
    AutoTokenizer,
    BlipVisionConfig,
    BlipVisionModel,
    RobertaConfig,
    RobertaModel,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.utils import logging

from shoestring.errors import UsageError
from shoestring.recipes.vqa import tokens
from shoestring.recipes.vqa.student import Student

Size = Literal["full", "tiny"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A transformer: its classes, what differs from the configuration's defaults at each size, and which weights it
    may go without."""

    model: Any
    configuration: Any
    sizes: Mapping[Size, Mapping[str, Any]]
    spared: tuple[str, ...] = ()
    """Names of weights that are not used."""
    inside: str = ""
    """What it is called in the model that is published."""


PARTS = {
    "vision": Part(
        inside="vision_model",
        model=BlipVisionModel,
        configuration=BlipVisionConfig,
        sizes={
            # The defaults are those of Salesforce/blip-vqa-base: 577 tokens of width 768. All but the deviation of new
            # weights, 1e-10, from which nothing would ever be learnt.
            "full": {"initializer_range": 0.02},
            "tiny": {
                "initializer_range": 0.1,
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": 16,
                "patch_size": 8,
            },
        },
    ),
    "text": Part(
        model=RobertaModel,
        configuration=RobertaConfig,
        sizes={
            # vinai/phobert-base: two positions are never used, because RoBERTa counts from the padding's id + 1.
            "full": {
                "vocab_size": 64001, "max_position_embeddings": 258, "type_vocab_size": 1, "layer_norm_eps": 1e-5
            },
            "tiny": {
                "initializer_range": 0.1,
                "vocab_size": 512,
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "max_position_embeddings": 258,
                "type_vocab_size": 1,
                "hidden_dropout_prob": 0.0,
                "attention_probs_dropout_prob": 0.0,
            },
        },
        spared=("pooler.dense.weight", "pooler.dense.bias"),
    ),
    "writer": Part(
        model=T5ForConditionalGeneration,
        configuration=T5Config,
        sizes={
            # VietAI/vit5-base.
            "full": {
                "vocab_size": 36096,
                "d_model": 768,
                "d_kv": 64,
                "d_ff": 3072,
                "num_layers": 12,
                "num_heads": 12,
                "decoder_start_token_id": 0,
            },
            "tiny": {
                "vocab_size": 512,
                "d_model": 32,
                "dropout_rate": 0.0,
                "d_kv": 16,
                "d_ff": 64,
                "num_layers": 1,
                "num_heads": 2,
                "decoder_start_token_id": 0,
            },
        },
    ),
}  # fmt: skip

FUSION_DROPOUT: Mapping[Size, tuple[float, float]] = {"full": (0.2, 0.1), "tiny": (0.02, 0.02)}
"""A small network forgets more by dropout than it gains."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where weights, shapes and tokenizers come from."""

    size: Size
    folders: Mapping[str, str | None]
    """By part: a folder or a name on the hub, None for random weights of `size`."""
    download: bool

    def configuration(self, name: str) -> Any:
        """The part's configuration. Raises UsageError where it cannot be read or is of another kind of model."""
        part, folder = PARTS[name], self.folders[name]
        if folder is None:
            return part.configuration(**part.sizes[self.size])
        with _told(name, folder):
            return part.configuration.from_pretrained(folder, **self._loading)

    def tokens(self, name: Literal["text", "writer"]) -> tokens.Tokens:
        """The part's tokenizer: that of its folder, or the recipe's own. Raises UsageError where it does not fit."""
        folder = self.folders[name]
        if folder is None:
            found: tokens.Tokens = tokens.questions() if name == "text" else tokens.texts()
        else:
            with _told(name, folder):
                loaded = AutoTokenizer.from_pretrained(folder, **self._loading)
            found = tokens.Pretrained(loaded, marked=name == "writer")
        if found.count > (most := self.configuration(name).vocab_size):
            raise UsageError(f"{name}: the tokenizer has {found.count} tokens, the model {most}")
        return found

    def student(self) -> Student:
        """Raises UsageError where weights cannot be read or are not all there."""
        made = {name: self._model(name) for name in PARTS}
        return Student(**made, dropout=FUSION_DROPOUT[self.size])

    def notes(self) -> list[str]:
        """What a person should know of the weights."""
        random = [name for name, folder in self.folders.items() if folder is None]
        if not random or self.size == "tiny":
            return []
        return [
            f"random weights, not pretrained ones: {', '.join(random)}"
            f" ({', '.join(f'{name}_from=FOLDER' for name in random)} takes pretrained ones)"
        ]

    def _model(self, name: str) -> Any:
        part, folder = PARTS[name], self.folders[name]
        if folder is None:
            return part.model(self.configuration(name))
        with _told(name, folder):
            loaded, found = part.model.from_pretrained(
                folder,
                use_safetensors=True,
                output_loading_info=True,
                dtype="float32",
                key_mapping={rf"^{part.inside}\.": ""} if part.inside else None,
                **self._loading,
            )
        missing = sorted(key for key in found["missing_keys"] if key not in part.spared)
        if missing:
            raise UsageError(
                f"{name}_from={folder} lacks {len(missing)} of the weights, {missing[0]} for one",
                hint="random ones would take their place: give the weights of the model that it is",
            )
        return loaded.train()

    @property
    def _loading(self) -> dict[str, Any]:
        return {"local_files_only": not self.download, "trust_remote_code": False}


@contextmanager
def _told(name: str, folder: str) -> Iterator[None]:
    """What transformers raises for files that are not there, in our words; nothing of what it logs of weights that are
    left over, the rest of BLIP for one."""
    before = logging.get_verbosity()
    logging.set_verbosity(ERROR)
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{name}_from={folder} cannot be read: {str(error).splitlines()[0]}",
            hint="a folder with config.json, model.safetensors and the tokenizer's files; or a name on the hub and "
            "download=true",
        ) from error
    finally:
        logging.set_verbosity(before)
