"""What the hierarchical BiLSTM-CRF makes of the recipe: its samples are judgments, labeled sentence by sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring.recipe.inputs import Rows
from shoestring_recipes.legal import prediction

if TYPE_CHECKING:
    from torch import Tensor, nn

    from shoestring.recipe.exports import Format, OnnxGraph
    from shoestring.recipe.inputs import Input
    from shoestring_recipes.legal.documents import Document
    from shoestring_recipes.legal.options import Options
    from shoestring_recipes.legal.texts import Judgment


@dataclass(frozen=True, kw_only=True)
class JudgmentNetwork:
    """The hierarchical network with the options of a run, over words or, with the option `vectors`, their vectors."""

    options: Options
    roles: tuple[str, ...]

    def build(self, _encoder: str | None = None, **_: bool) -> nn.Module:
        """Return the network, which has no encoder."""
        from shoestring_recipes.legal.hierarchical import SIZES, HierarchicalBiLSTM

        options = self.options
        return HierarchicalBiLSTM(roles=len(self.roles), vector_width=options.vectors, **SIZES[options.size])

    def load(self, path: Path) -> nn.Module:
        """Return the network with the weights at `path`."""
        from shoestring.training.checkpoint.foreign import load_foreign

        network = self.build()
        load_foreign(path, network)
        return network

    def batch(self, size: int) -> Any:
        """Return `vectors.largest_batch` or `judgments.largest_batch`."""
        from shoestring_recipes.legal import judgments, vectors

        options = self.options
        if options.vectors is not None:
            return vectors.largest_batch(size, width=options.vectors, sentences=options.max_sentences)
        return judgments.largest_batch(size, words=options.max_tokens, sentences=options.max_sentences)

    def loss(self, model: Any, batch: Any) -> tuple[Tensor, Tensor]:
        """Return the sum of the CRF's losses, and the number of sentences."""
        return model.crf(model(batch), batch["roles"], batch["mask"]).sum(), batch["mask"].sum()

    def evaluate(self, model: Any, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sum of losses, the predicted and the true role of each sentence."""
        emissions, truth, mask = model(batch), batch["roles"], batch["mask"]
        return model.crf(emissions, truth, mask).sum(), model.crf.decode(emissions, mask)[mask], truth[mask]

    def collate(self, samples: Sequence[Any]) -> Any:
        """Return `vectors.collate` or `judgments.collate`."""
        from shoestring_recipes.legal import judgments, vectors

        return vectors.collate(samples) if self.options.vectors is not None else judgments.collate(samples)

    def describe(self, dataset: Any, index: int) -> dict[str, Any]:
        return {"sentences": dataset.length(index)}

    def label(self, _dataset: Any, _index: int) -> int:
        """Return 0: a judgment has many roles."""
        return 0

    def identify(self, dataset: Any, index: int) -> Rows:
        return Rows(dataset.ids[number] for number in dataset.numbers(index))

    def dataset_builder(self) -> Callable[[list[Document]], Any]:
        """Return a function from judgments to their dataset."""
        from shoestring_recipes.legal import judgments, vectors
        from shoestring_recipes.legal.hierarchical import SIZES
        from shoestring_recipes.legal.tokens import HashedWords

        options = self.options
        if options.vectors is not None:
            return partial(vectors.Vectors, sentences=options.max_sentences)
        tokenizer = HashedWords(SIZES[options.size]["vocabulary"])
        return partial(
            judgments.Judgments, tokenizer=tokenizer, words=options.max_tokens, sentences=options.max_sentences
        )

    def inputs(self, texts: Iterable[Judgment]) -> Iterator[Input]:
        return prediction.judgment_inputs(texts, self.dataset_builder())

    def predict(self, model: Any, batch: Any) -> list[dict[str, Any]]:
        return prediction.predict_judgments(model, batch, self.roles)

    def exports(self) -> dict[str, Format]:
        """Return no formats: no library has this network."""
        return {}

    def onnx(self, model: Any) -> OnnxGraph:
        from shoestring_recipes.legal.export import emission_graph

        return emission_graph(model, self.roles, has_words=self.options.vectors is None)
