"""The student's three parts: random weights with published shapes, or pretrained weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from transformers import (
    AutoTokenizer,
    BlipVisionConfig,
    BlipVisionModel,
    GenerationConfig,
    RobertaConfig,
    RobertaModel,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.utils import GENERATION_CONFIG_NAME

from shoestring.base.errors import UsageError
from shoestring.integrations.huggingface import pretrained
from shoestring.integrations.huggingface.configuration import require_sizes
from shoestring.integrations.huggingface.saving import quiet
from shoestring_recipes.vqa import tokens
from shoestring_recipes.vqa.student import Student

Size = Literal["full", "tiny"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A transformer: its classes, and the changes of the default configuration at each size."""

    model: Any
    configuration: Any
    sizes: Mapping[Size, Mapping[str, Any]]
    unused_weights: tuple[str, ...] = ()
    """Names of unused weights, which pretrained weights may lack."""
    published_prefix: str = ""
    """Prefix of its weights in the published model that contains it."""


PARTS = {
    "vision": Part(
        published_prefix="vision_model",
        model=BlipVisionModel,
        configuration=BlipVisionConfig,
        sizes={
            # The defaults are those of Salesforce/blip-vqa-base, 577 tokens of width 768, except the standard
            # deviation of initial weights: the default 1e-10 would prevent learning.
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
            # vinai/phobert-base: two of its positions are unused, because RoBERTa counts from the padding's id + 1.
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
        unused_weights=("pooler.dense.weight", "pooler.dense.bias"),
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

TOKENIZED = ("text", "writer")
"""The parts with a tokenizer."""

FUSION_DROPOUT: Mapping[Size, tuple[float, float]] = {"full": (0.2, 0.1), "tiny": (0.02, 0.02)}
"""Dropout of the fusion's two layers; a tiny network underfits with more."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """The source of weights, configurations and tokenizers."""

    size: Size
    folders: Mapping[str, str | None]
    """A folder or a name on the hub by part; None for random weights of `size`."""
    download: bool
    has_weights: bool = True
    """Whether the weights in the folders are loaded; otherwise only their shape is used."""

    def load_configuration(self, name: str) -> Any:
        """Return the part's configuration. Raises UsageError where it is unreadable or of another model type."""
        part, folder = PARTS[name], self.folders[name]
        if folder is None:
            return part.configuration(**part.sizes[self.size])
        with pretrained.reading(f"{name}_from={folder}"):
            directory = pretrained.find(folder, download=self.download)
            configuration = part.configuration.from_pretrained(directory, local_files_only=True)
        require_sizes(f"{name}_from={folder}", configuration.to_dict(), part.configuration)
        return configuration

    def load_tokenizer(self, name: Literal["text", "writer"]) -> tokens.Tokenizer:
        """Return the part's pretrained tokenizer, or the recipe's own.

        Raises UsageError where it has more tokens than the model.
        """
        folder = self.folders[name]
        tokenizer: tokens.Tokenizer
        if folder is None:
            tokenizer = tokens.build_question_tokenizer() if name == "text" else tokens.build_text_tokenizer()
        else:
            tokenizer = tokens.PretrainedTokenizer(self._load_pretrained_tokenizer(name), has_markers=name == "writer")
        vocab_size = self.load_configuration(name).vocab_size
        if tokenizer.count > vocab_size:
            raise UsageError(
                f"the tokenizer of {name} has {tokenizer.count} tokens, more than the {vocab_size} of the model"
            )
        return tokenizer

    def build_student(self) -> Student:
        """Build the student. Raises UsageError where weights cannot be read or are incomplete."""
        models = {name: self._load_model(name) for name in PARTS}
        return Student(**models, dropout=FUSION_DROPOUT[self.size])

    def save(self, folder: Path) -> None:
        """Write the configurations and tokenizers of the pretrained parts into `folder`, one folder for each part.

        Raises UsageError where they cannot be read, and OSError.
        """
        for name, source in self.folders.items():
            if source is None:
                continue
            self.load_configuration(name).save_pretrained(folder / name)
            if name in TOKENIZED:
                self._load_pretrained_tokenizer(name).save_pretrained(folder / name)
            if generation := self._load_generation_configuration(source):
                # Not `save_pretrained`: that of transformers 4.56 and 5.0 refuses values that `generate` ignores.
                generation.to_json_file(folder / name / GENERATION_CONFIG_NAME)

    @property
    def random_parts(self) -> tuple[str, ...]:
        """The parts that begin with random weights; none of the small student, whose weights are always random."""
        random = tuple(name for name, folder in self.folders.items() if folder is None)
        return () if self.size == "tiny" else random

    def notes(self) -> list[str]:
        """Return notes for the user about the weights."""
        notes = [
            note
            for name, folder in self.folders.items()
            if folder is not None
            for note in pretrained.weights_notes(f"{name}_from", folder, download=self.download)
        ]
        if not self.random_parts:
            return notes
        return [
            *notes,
            f"random weights, not pretrained ones: {', '.join(self.random_parts)}"
            f" (set {', '.join(f'{name}_from=FOLDER' for name in self.random_parts)} for pretrained weights)",
        ]

    def _load_model(self, name: str) -> Any:
        part, folder = PARTS[name], self.folders[name]
        if folder is None:
            return part.model(self.load_configuration(name))
        if not self.has_weights:
            return self._build_model(name, folder)
        with pretrained.reading(f"{name}_from={folder}"):
            directory = pretrained.find_weights(folder, download=self.download)
            if pretrained.is_planned():
                return part.model(self.load_configuration(name))
            prefix = part.published_prefix
            model, missing = pretrained.load_model(
                part.model, directory, dtype="float32", key_mapping={rf"^{prefix}\.": ""} if prefix else None
            )
        missing = [key for key in missing if key not in part.unused_weights]
        if missing:
            raise UsageError(
                f"{name}_from={folder} lacks {len(missing)} of the weights, for example {missing[0]};"
                " they would be random",
                hint="give the complete weights of a model of this kind",
            )
        return model.train()

    def _build_model(self, name: str, folder: str) -> Any:
        """Return the part's model with random weights, which generates as the one in `folder`."""
        model = PARTS[name].model(self.load_configuration(name))
        if generation := self._load_generation_configuration(folder):
            model.generation_config = generation
        return model

    def _load_pretrained_tokenizer(self, name: str) -> Any:
        folder = self.folders[name]
        assert folder is not None
        with pretrained.reading(f"{name}_from={folder}"):
            directory = pretrained.find(folder, download=self.download)
            return AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)

    def _load_generation_configuration(self, folder: str) -> GenerationConfig | None:
        """Return the defaults of generation; None where the source has none of its own."""
        with pretrained.reading(f"{folder}"):
            directory = pretrained.find(folder, download=self.download)
        try:
            with quiet():
                return GenerationConfig.from_pretrained(directory, local_files_only=True)
        except OSError:
            return None
