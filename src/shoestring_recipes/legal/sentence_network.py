"""What the classifier, BERT over a sentence and its context, makes of the recipe: its samples are sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring.base.packages.requirements import require
from shoestring.recipe.exports import Format
from shoestring_recipes.legal import prediction

if TYPE_CHECKING:
    from torch import Tensor, nn

    from shoestring.recipe.exports import Exported, OnnxGraph
    from shoestring.recipe.inputs import Input
    from shoestring_recipes.legal.documents import Document
    from shoestring_recipes.legal.options import Options
    from shoestring_recipes.legal.texts import Judgment
    from shoestring_recipes.legal.tokens import Tokenizer


@dataclass(frozen=True, kw_only=True)
class SentenceNetwork:
    """The classifier with the options of a run; `JudgmentNetwork` has the same members for the other network."""

    options: Options
    roles: tuple[str, ...]
    encoder: str | None
    """The folder or name of the encoder's configuration and tokenizer."""
    frequencies: Sequence[int]
    """How often each role occurs in the training data; equal numbers without data, for planning."""

    def build(self, encoder: str | None, *, has_weights: bool) -> nn.Module:
        """Return the network. Raises UsageError if the extra is not installed or the encoder cannot be read."""
        require("legal", "transformers")
        from shoestring_recipes.legal.classifier import build_classifier

        options = self.options
        return build_classifier(
            options.size, len(self.roles), encoder, download=options.download, has_weights=has_weights
        )

    def load(self, path: Path) -> nn.Module:
        """Return the network with the weights at `path`: its own, transformers' or the guide's."""
        require("legal", "transformers")
        from shoestring_recipes.legal.published_weights import load_classifier

        options = self.options
        return load_classifier(
            path, size=options.size, roles=self.roles, encoder=options.encoder, download=options.download
        )

    def batch(self, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return token ids (size, seq_len) int64, their mask (size, seq_len) int64 and roles (size,) int64."""
        import torch

        tokens = torch.ones(size, self.options.max_tokens, dtype=torch.int64)
        mask = tokens.clone()
        # Real batches have padding; without any, attention would choose a kernel that training never uses.
        mask[0, -1] = 0
        return tokens, mask, torch.zeros(size, dtype=torch.int64)

    def loss(self, model: Any, batch: Any) -> Tensor | tuple[Tensor, Tensor]:
        """Return the mean cross-entropy over the sentences; with class weights, a sum and its weight.

        The weight of a role is the mean frequency of the roles in the training data divided by its own.
        """
        from torch.nn.functional import cross_entropy

        tokens, mask, truth = batch
        logits = model(tokens, mask)
        if self.options.class_weights == "none":
            return cross_entropy(logits, truth)
        mean = sum(self.frequencies) / len(self.frequencies)
        weights = logits.new_tensor([mean / max(1, count) for count in self.frequencies])
        return cross_entropy(logits, truth, weights, reduction="sum"), weights[truth].sum()

    def evaluate(self, model: Any, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sum of losses without class weights, the predicted and the true role of each sentence."""
        from torch.nn.functional import cross_entropy

        tokens, mask, truth = batch
        logits = model(tokens, mask)
        return cross_entropy(logits, truth, reduction="sum"), logits.argmax(dim=-1), truth

    def collate(self, samples: Sequence[Any]) -> Any:
        """Return a batch padded to its longest sample."""
        from shoestring.training.data.padding import pad_batch

        return pad_batch(samples, (0, 0, None))

    def describe(self, dataset: Any, index: int) -> dict[str, Any]:
        return {"role": self.roles[int(dataset.roles[index])]}

    def label(self, dataset: Any, index: int) -> int:
        return int(dataset.roles[index])

    def identify(self, dataset: Any, index: int) -> str | int:
        """Return `FILE:LINE` of a sentence, or its number if it is of no file."""
        identifier: str | int = dataset.ids[index]
        return identifier

    def tokenizer(self) -> Tokenizer:
        from shoestring_recipes.legal.tokens import HashedWords, PretrainedTokenizer

        require("legal", "transformers")
        if self.encoder is not None:
            return PretrainedTokenizer(self.encoder, download=self.options.download)
        from shoestring_recipes.legal.classifier import vocabulary_size

        return HashedWords(vocabulary_size(self.options.size))

    def dataset_builder(self) -> Callable[[list[Document]], Any]:
        """Return a function from judgments to the dataset of their sentences."""
        from shoestring_recipes.legal.sentences import Sentences

        options = self.options
        return partial(Sentences, tokenizer=self.tokenizer(), context=options.context, max_tokens=options.max_tokens)

    def inputs(self, judgments: Iterable[Judgment]) -> Iterator[Input]:
        return prediction.sentence_inputs(judgments, self.dataset_builder())

    def predict(self, model: Any, batch: Any) -> list[dict[str, Any]]:
        return prediction.predict_sentences(model, batch, self.roles)

    def exports(self) -> dict[str, Format]:
        """Return the formats of transformers, of which the classifier is a model."""
        return {"huggingface": Format(write=self._write)}

    def onnx(self, model: Any) -> OnnxGraph:
        from shoestring_recipes.legal.export import classifier_graph

        return classifier_graph(model, self.roles)

    def _write(self, model: Any, folder: Path, samples: Sequence[Any]) -> Exported:
        from shoestring_recipes.legal.export import write_classifier
        from shoestring_recipes.legal.tokens import PretrainedTokenizer

        tokenizer = self.tokenizer()
        return write_classifier(
            model,
            folder,
            [self.collate(part) for part in samples],
            roles=self.roles,
            tokenizer=tokenizer.library_tokenizer if isinstance(tokenizer, PretrainedTokenizer) else None,
            max_tokens=self.options.max_tokens,
        )
