"""The `legal` recipe: classify the rhetorical role of each sentence of a court judgment.

There are two networks. The classifier is BERT over a sentence and its context; pretrained weights come from the option
`encoder`, for example law-ai/InLegalBERT. The hierarchical BiLSTM-CRF labels all sentences of a judgment at once; its
samples are judgments, so the effective batch counts judgments. What differs between them is in `sentence_network.py`
and `judgment_network.py`; what they share, the judgments, their roles and their metrics, is here.

The baseline always predicts the most frequent role, so `evaluate` reports the metrics of both. Needs
`pip install -e '.[legal]'`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring.base.errors import UsageError
from shoestring.base.units import count_text
from shoestring.recipe import evidence
from shoestring.recipe.evaluating import EvaluatesBatches
from shoestring_recipes.legal import roles
from shoestring_recipes.legal.options import Options
from shoestring_recipes.legal.split import part_shares, split_documents
from shoestring_recipes.one_class import one_class_notes
from shoestring_recipes.rows import BadRows

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from shoestring.recipe.exports import Format, OnnxGraph
    from shoestring.recipe.inputs import Input, Rows
    from shoestring_recipes.legal.documents import Document
    from shoestring_recipes.legal.judgment_network import JudgmentNetwork
    from shoestring_recipes.legal.sentence_network import SentenceNetwork
    from shoestring_recipes.legal.texts import Reader

LEARNING_RATES = {
    ("classifier", "full"): 2e-5,
    ("classifier", "tiny"): 3e-3,
    ("hier_bilstm_crf", "full"): 3e-3,
    ("hier_bilstm_crf", "tiny"): 1e-2,
}
WEIGHT_DECAY = 0.01
SENTENCES_PER_JUDGMENT = 225.0
"""The training data of LegalSeg: 1,122,507 sentences of 4,984 judgments (docs/claims.md)."""
WARM_UP = 500
"""Updates of warm-up; a run of less than 5,000 updates has a tenth of its updates instead."""


class Legal(EvaluatesBatches):
    """Classification of the rhetorical roles of the sentences of judgments."""

    best = ("weighted_f1", "max")
    held_out_part = "test"
    prediction_options = ("text",)
    clip_norm = 1.0
    row = "a judgment"

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self._frequencies: list[int] = []
        self._rows_read = 0
        self._data_notes: list[str] = []
        self._preprocessing: Path | None = None
        self._stored_roles: tuple[str, ...] = ()
        self._reader: Reader | None = None

    @property
    def _network(self) -> SentenceNetwork | JudgmentNetwork:
        """The network of the option `architecture`."""
        if self.options.labels_judgments:
            from shoestring_recipes.legal.judgment_network import JudgmentNetwork

            return JudgmentNetwork(options=self.options, roles=self._roles)
        from shoestring_recipes.legal.sentence_network import SentenceNetwork

        frequencies = self._frequencies or [1] * len(self._roles)
        return SentenceNetwork(options=self.options, roles=self._roles, encoder=self._encoder, frequencies=frequencies)

    @property
    def has_synthetic_lengths(self) -> bool:
        return self.options.data is None

    @property
    def capacity(self) -> float:
        """The most tokens of a sentence with its context, or sentences of a judgment."""
        return self.options.max_sentences if self.options.labels_judgments else self.options.max_tokens

    @property
    def length_option(self) -> str:
        return "max_sentences" if self.options.labels_judgments else "seq_len"

    @property
    def length_unit(self) -> str:
        return "sentences" if self.options.labels_judgments else "tokens"

    def length_source(self) -> str:
        return f"the tokens of {self._encoder or 'hashed words'} with context={self.options.context}"

    @property
    def samples_per_row(self) -> float:
        return 1.0 if self.options.labels_judgments else SENTENCES_PER_JUDGMENT

    def rows_read(self) -> int:
        """Return the number of judgments that `data` has read."""
        return self._rows_read

    def count_rows(self, files: Mapping[str, int]) -> int | None:
        """Return the number of files if each has one judgment, by their sizes; else None."""
        from shoestring_recipes.legal.documents import count_documents

        return count_documents(files)

    @property
    def part_shares(self) -> dict[str, float]:
        return part_shares(self.options.fold)

    def model(self) -> nn.Module:
        """Return the network. Raises UsageError if the extra is not installed or the encoder cannot be read."""
        return self._network.build(self.options.encoder, has_weights=True)

    def skeleton(self) -> nn.Module:
        """Return the network without pretrained weights, by the stored configuration of the encoder if there is one."""
        return self._network.build(self._encoder, has_weights=False)

    def pretrained(self, path: Path) -> nn.Module:
        """Return the network with the weights at `path`, also those of transformers or the guide for the classifier."""
        return self._network.load(path)

    def batch(self, size: int) -> Any:
        """Return the largest batch of the network."""
        return self._network.batch(size)

    def loss(self, model: Any, batch: Any) -> Tensor | tuple[Tensor, Tensor]:
        """Return the mean loss over the sentences; with class weights, or for a CRF, a sum and its weight."""
        return self._network.loss(model, batch)

    def data(self) -> dict[str, Any]:
        """Return the datasets `train`, `validation` and `test`, split by judgments (`split.split_documents`).

        Raises DataError with all problems of the files, UsageError if the extra is not installed.
        """
        parts = split_documents(self._load_documents(), self.options.fold)
        self._rows_read = sum(map(len, parts.values()))
        self._frequencies = [0] * len(self._roles)
        for document in parts["train"]:
            for role in document.roles:
                self._frequencies[role] += 1
        counts = [
            f"{name} {len(documents)} ({count_text(_count_sentences(documents))} sentences)"
            for name, documents in parts.items()
        ]
        self._data_notes.append(f"judgments: {', '.join(counts)}")
        classes = {
            name: {self._roles[role] for document in documents for role in document.roles}
            for name, documents in parts.items()
        }
        self._data_notes += one_class_notes(classes, "sentences")
        build = self._network.dataset_builder()
        return {name: build(documents) for name, documents in parts.items()}

    def whole(self) -> Any:
        """Return all judgments as one dataset, in the order of the files. Raises as `data` does."""
        return self._network.dataset_builder()(
            [document for part in self._load_documents().values() for document in part]
        )

    def random_parts(self) -> tuple[str, ...]:
        """Return the encoder, unless its weights are pretrained."""
        is_random = self.options.encoder is None and self._preprocessing is None
        return ("encoder",) if is_random and not self.options.labels_judgments and self.options.size == "full" else ()

    def notes(self) -> list[str]:
        """Return sentences about the data, skipped rows and random or missing weights."""
        notes = [*self._data_notes, *(self._reader.notes() if self._reader else ())]
        if self.options.encoder is not None and self._preprocessing is None:
            from shoestring.integrations.huggingface.pretrained import weights_notes

            return [*notes, *weights_notes("encoder", self.options.encoder, download=self.options.download)]
        if self.random_parts():
            return [
                *notes,
                "BERT's initial weights are random and its tokens are hashed words; --set encoder=law-ai/InLegalBERT "
                "(or a folder) uses pretrained weights and their tokenizer",
            ]
        return notes

    def collate(self, samples: Sequence[Any]) -> Any:
        """Return the network's batch of the samples; those of a prediction have further columns of their rows."""
        from shoestring_recipes.legal import prediction

        if isinstance(samples[0], prediction.Located):
            return prediction.collate(samples, self._network.collate)
        return self._network.collate(samples)

    def length(self, dataset: Any, index: int) -> int:
        """Return the number of tokens of a sentence with its context, or of sentences of a judgment."""
        return int(dataset.length(index))

    def describe(self, dataset: Any, index: int) -> dict[str, Any]:
        """Return the beginning of a sample's (first) sentence, and the number of its sentences or its role."""
        return {"beginning": dataset.text(index)[:120], **self._network.describe(dataset, index)}

    def label(self, dataset: Any, index: int) -> int:
        """Return the role of a sentence, or 0 for a judgment."""
        return self._network.label(dataset, index)

    def optimizer(self, model: nn.Module) -> Optimizer:
        import torch

        rate = self.options.learning_rate
        if rate is None:
            rate = LEARNING_RATES[self.options.architecture, self.options.size]
        return torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=WEIGHT_DECAY)

    def schedule(self, update: int, _updates_per_epoch: int, total_updates: int) -> float:
        """Return a factor that rises linearly during the warm-up and then falls linearly to almost 0."""
        warm_up = min(WARM_UP, max(1, total_updates // 10))
        if update < warm_up:
            return (update + 1) / warm_up
        return (total_updates - update) / max(1, total_updates - warm_up)

    @property
    def patience(self) -> int | None:
        return self.options.patience

    def evaluate_batch(self, model: Any, batch: Any) -> Any:
        """Return the sum of losses without class weights, the predicted and the true role of each sentence."""
        return self._network.evaluate(model, batch)

    def combine(self, results: Sequence[Any]) -> dict[str, Any]:
        """Return `loss` without class weights, and `metrics.scores` over all sentences."""
        import torch

        from shoestring_recipes.legal.metrics import scores

        losses, predicted, labels = zip(*results, strict=True)
        truths, predictions = torch.cat(labels).cpu(), torch.cat(predicted).cpu()
        return {
            "loss": float(torch.stack(losses).double().sum()) / len(truths),
            **scores(predictions, truths, self._roles),
            evidence.KEY: {"confusion_matrix": evidence.confusion_matrix(truths, predictions, self._roles)},
        }

    def inputs(self, source: Any) -> Iterator[Input]:
        """Return the sentences of `texts.Reader`, or those of the synthetic judgments; `Rows` of them for a judgment.

        Raises DataError if there is no such file.
        """
        from shoestring_recipes.legal import texts

        if source is None:
            source = [
                {"sentences": document.sentences} for part in self._load_documents().values() for document in part
            ]
        form = "lines" if self.options.vectors is not None else self.options.text
        self._reader = texts.Reader(form=form, roles=self._roles, find_problem=self._sentence_problem)
        return self._network.inputs(self._reader.read(source))

    def predict(self, model: Any, batch: Any) -> list[dict[str, Any]]:
        """Return the role of each sentence and its probability; for a judgment `Rows` of them."""
        return self._network.predict(model, batch)

    def targets(self, batch: Any) -> list[Any]:
        """Return the true role of each sentence."""
        from shoestring_recipes.legal.prediction import role_targets

        return role_targets(batch, self._roles)

    def identify(self, dataset: Any, index: int) -> str | int | Rows:
        """Return `FILE:LINE` of a sentence, or `Rows` of them; the number of a sentence that is of no file."""
        return self._network.identify(dataset, index)

    def save_preprocessing(self, folder: Path) -> None:
        from shoestring_recipes.legal import preprocessing

        preprocessing.save(folder, self._roles, self._encoder, download=self.options.download)

    def load_preprocessing(self, folder: Path) -> None:
        """Use the roles, the configuration and the tokenizer of the run. Raises UsageError if they are damaged."""
        from shoestring_recipes.legal import preprocessing

        stored_roles = preprocessing.read_roles(folder)
        is_set = self.options.roles != Options.roles
        if is_set and roles.role_names(self.options.roles) != stored_roles:
            raise UsageError(
                f"roles={self.options.roles}: the model was trained with the roles {', '.join(stored_roles)}",
                hint="leave out roles; data with other roles cannot be evaluated with this model",
            )
        self._preprocessing, self._stored_roles = folder, stored_roles

    @property
    def _encoder(self) -> str | None:
        """The folder or name of the encoder's configuration and tokenizer."""
        from shoestring_recipes.legal.preprocessing import encoder_folder

        encoder = self.options.encoder
        return encoder_folder(self._preprocessing, encoder) if self._preprocessing else encoder

    @property
    def exports(self) -> dict[str, Format]:
        return self._network.exports()

    def onnx(self, model: Any) -> OnnxGraph:
        return self._network.onnx(model)

    @property
    def _roles(self) -> tuple[str, ...]:
        return self._stored_roles or roles.role_names(self.options.roles)

    def _load_documents(self) -> dict[str, list[Document]]:
        """Return the judgments, by part if the files define parts."""
        if self.options.data is not None:
            from shoestring_recipes.legal.documents import read

            bad_rows = BadRows(self.options.on_bad_rows)
            documents = read(self.options.data, roles.class_numbers(self._roles), bad_rows, self._sentence_problem)
            self._data_notes = list(bad_rows.notes)
            return documents
        from shoestring_recipes.legal import synthetic

        if self.options.roles != "legalseg":
            raise UsageError(
                f"roles={self.options.roles}: the synthetic judgments have the roles of legalseg",
                hint="--set data=PATH",
            )
        judgments = synthetic.generate_judgments()
        self._data_notes = [synthetic.NOTE.format(judgments=len(judgments))]
        return {"all": judgments}

    def _sentence_problem(self, sentence: str) -> str | None:
        """Return why a sentence of a file cannot be used; None if it can."""
        if self.options.vectors is None:
            return None
        from shoestring_recipes.legal.vectors import vector_problem

        return vector_problem(sentence, self.options.vectors)


def _count_sentences(documents: Sequence[Document]) -> int:
    return sum(len(document.sentences) for document in documents)
