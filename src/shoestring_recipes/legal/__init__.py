"""The `legal` recipe: classify the rhetorical role of each sentence of a court judgment.

There are two networks. The classifier is BERT over a sentence and its context; pretrained weights come from the option
`encoder`, for example law-ai/InLegalBERT. The hierarchical BiLSTM-CRF labels all sentences of a judgment at once; its
samples are judgments, so the effective batch counts judgments.

The baseline always predicts the most frequent role, so `evaluate` reports the metrics of both. Needs
`pip install -e '.[legal]'`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring.base.errors import UsageError
from shoestring.base.packages.requirements import require
from shoestring.base.units import count_text
from shoestring.recipe import evidence
from shoestring.recipe.evaluating import EvaluatesBatches
from shoestring.recipe.inputs import Input, Rows
from shoestring_recipes.legal import roles
from shoestring_recipes.legal.options import Options
from shoestring_recipes.legal.split import part_shares, split_documents
from shoestring_recipes.one_class import one_class_notes
from shoestring_recipes.rows import BadRows

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from shoestring.recipe.exports import Exported, Format, OnnxGraph
    from shoestring_recipes.legal.documents import Document
    from shoestring_recipes.legal.texts import Reader
    from shoestring_recipes.legal.tokens import Tokenizer

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
    def capacity(self) -> float:
        """The most tokens of a sentence with its context, or sentences of a judgment."""
        return self.options.max_sentences if self._hierarchical else self._max_tokens

    @property
    def length_option(self) -> str:
        return "max_sentences" if self._hierarchical else "seq_len"

    @property
    def length_unit(self) -> str:
        return "sentences" if self._hierarchical else "tokens"

    def length_source(self) -> str:
        return f"the tokens of {self._encoder or 'hashed words'} with context={self.options.context}"

    @property
    def samples_per_row(self) -> float:
        return 1.0 if self._hierarchical else SENTENCES_PER_JUDGMENT

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
        return self._build_network(self.options.encoder, has_weights=True)

    def skeleton(self) -> nn.Module:
        """Return the network without pretrained weights, by the stored configuration of the encoder if there is one."""
        return self._build_network(self._encoder, has_weights=False)

    def _build_network(self, encoder: str | None, *, has_weights: bool) -> nn.Module:
        count, size = len(self._roles), self.options.size
        if self._hierarchical:
            from shoestring_recipes.legal.hierarchical import SIZES, HierarchicalBiLSTM

            return HierarchicalBiLSTM(roles=count, vector_width=self.options.vectors, **SIZES[size])
        require("legal", "transformers")
        from shoestring_recipes.legal.classifier import build_classifier

        return build_classifier(size, count, encoder, download=self.options.download, has_weights=has_weights)

    def pretrained(self, path: Path) -> nn.Module:
        """Return the network with the weights at `path`: its own, transformers' or the guide's."""
        if self._hierarchical:
            from shoestring.training.checkpoint.foreign import load_foreign

            network = self.model()
            load_foreign(path, network)
            return network
        require("legal", "transformers")
        from shoestring_recipes.legal.published_weights import load_classifier

        options = self.options
        return load_classifier(
            path, size=options.size, roles=self._roles, encoder=options.encoder, download=options.download
        )

    def batch(self, size: int) -> Any:
        """Return the largest batch of the network.

        For the classifier: token ids (size, seq_len) int64, their mask (size, seq_len) int64 and roles (size,) int64.
        For the other network: see `judgments.largest_batch` and `vectors.largest_batch`.
        """
        import torch

        if self.options.vectors is not None:
            from shoestring_recipes.legal import vectors

            return vectors.largest_batch(size, width=self.options.vectors, sentences=self.options.max_sentences)
        if self._hierarchical:
            from shoestring_recipes.legal.judgments import largest_batch

            return largest_batch(size, words=self._max_tokens, sentences=self.options.max_sentences)
        tokens = torch.ones(size, self._max_tokens, dtype=torch.int64)
        mask = tokens.clone()
        # Real batches have padding; without any, attention would choose a kernel that training never uses.
        mask[0, -1] = 0
        return tokens, mask, torch.zeros(size, dtype=torch.int64)

    def loss(self, model: Any, batch: Any) -> Tensor | tuple[Tensor, Tensor]:
        """Return the mean cross-entropy over the sentences; with class weights, or for a CRF, a sum and its weight."""
        from torch.nn.functional import cross_entropy

        if self._hierarchical:
            return model.crf(model(batch), batch["roles"], batch["mask"]).sum(), batch["mask"].sum()
        tokens, mask, truth = batch
        logits = model(tokens, mask)
        if self.options.class_weights == "none":
            return cross_entropy(logits, truth)
        weights = logits.new_tensor(self._class_weights)
        return cross_entropy(logits, truth, weights, reduction="sum"), weights[truth].sum()

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
        build = self._dataset_builder()
        return {name: build(documents) for name, documents in parts.items()}

    def whole(self) -> Any:
        """Return all judgments as one dataset, in the order of the files. Raises as `data` does."""
        return self._dataset_builder()([document for part in self._load_documents().values() for document in part])

    def random_parts(self) -> tuple[str, ...]:
        """Return the encoder, unless its weights are pretrained."""
        is_random = self.options.encoder is None and self._preprocessing is None
        return ("encoder",) if is_random and not self._hierarchical and self.options.size == "full" else ()

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
        """Return a batch padded to its longest sample; for the other network see `judgments.collate`."""
        from shoestring_recipes.legal import prediction

        if isinstance(samples[0], prediction.Located):
            return prediction.collate(samples, self.collate)
        if self.options.vectors is not None:
            from shoestring_recipes.legal import vectors

            return vectors.collate(samples)
        if self._hierarchical:
            from shoestring_recipes.legal.judgments import collate

            return collate(samples)
        from shoestring.training.data.padding import pad_batch

        return pad_batch(samples, (0, 0, None))

    def length(self, dataset: Any, index: int) -> int:
        """Return the number of tokens of a sentence with its context, or of sentences of a judgment."""
        return int(dataset.length(index))

    def describe(self, dataset: Any, index: int) -> dict[str, Any]:
        """Return the beginning of a sample's (first) sentence, and the number of its sentences or its role."""
        beginning = dataset.text(index)[:120]
        if self._hierarchical:
            return {"beginning": beginning, "sentences": dataset.length(index)}
        return {"beginning": beginning, "role": self._roles[int(dataset.roles[index])]}

    def label(self, dataset: Any, index: int) -> int:
        """Return the role of a sentence, or 0 for a judgment."""
        return 0 if self._hierarchical else int(dataset.roles[index])

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
        from torch.nn.functional import cross_entropy

        if self._hierarchical:
            emissions, truth, mask = model(batch), batch["roles"], batch["mask"]
            return model.crf(emissions, truth, mask).sum(), model.crf.decode(emissions, mask)[mask], truth[mask]
        tokens, mask, truth = batch
        logits = model(tokens, mask)
        return cross_entropy(logits, truth, reduction="sum"), logits.argmax(dim=-1), truth

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
        from shoestring_recipes.legal import prediction, texts

        if source is None:
            source = [
                {"sentences": document.sentences} for part in self._load_documents().values() for document in part
            ]
        form = "lines" if self.options.vectors is not None else self.options.text
        self._reader = texts.Reader(form=form, roles=self._roles, find_problem=self._sentence_problem)
        make_inputs = prediction.judgment_inputs if self._hierarchical else prediction.sentence_inputs
        return make_inputs(self._reader.read(source), self._dataset_builder())

    def predict(self, model: Any, batch: Any) -> list[dict[str, Any]]:
        """Return the role of each sentence and its probability; for a judgment `Rows` of them."""
        from shoestring_recipes.legal import prediction

        predict = prediction.predict_judgments if self._hierarchical else prediction.predict_sentences
        return predict(model, batch, self._roles)

    def targets(self, batch: Any) -> list[Any]:
        """Return the true role of each sentence."""
        from shoestring_recipes.legal.prediction import role_targets

        return role_targets(batch, self._roles)

    def identify(self, dataset: Any, index: int) -> str | int | Rows:
        """Return `FILE:LINE` of a sentence, or `Rows` of them; the number of a sentence that is of no file."""
        if self._hierarchical:
            return Rows(dataset.ids[number] for number in dataset.numbers(index))
        identifier: str | int = dataset.ids[index]
        return identifier

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
        """The classifier is a model of transformers; the other network is not."""
        if self._hierarchical:
            return {}
        from shoestring.recipe.exports import Format

        return {"huggingface": Format(write=self._write_classifier)}

    def onnx(self, model: Any) -> OnnxGraph:
        from shoestring_recipes.legal.export import classifier_graph, emission_graph

        if self._hierarchical:
            return emission_graph(model, self._roles, has_words=self.options.vectors is None)
        return classifier_graph(model, self._roles)

    @property
    def _hierarchical(self) -> bool:
        return self.options.architecture == "hier_bilstm_crf"

    @property
    def _roles(self) -> tuple[str, ...]:
        return self._stored_roles or roles.role_names(self.options.roles)

    @property
    def _max_tokens(self) -> int:
        """Largest number of tokens of a text."""
        return self.options.seq_len or (128 if self._hierarchical else 512)

    @property
    def _class_weights(self) -> list[float]:
        """Mean role frequency in the training data divided by that of each role; equal without data, for planning."""
        frequencies = self._frequencies or [1] * len(self._roles)
        return [sum(frequencies) / (len(frequencies) * max(1, count)) for count in frequencies]

    def _write_classifier(self, model: Any, folder: Path, samples: Sequence[Any]) -> Exported:
        from shoestring_recipes.legal.export import write_classifier
        from shoestring_recipes.legal.tokens import PretrainedTokenizer

        tokenizer = self._build_tokenizer()
        return write_classifier(
            model,
            folder,
            [self.collate(part) for part in samples],
            roles=self._roles,
            tokenizer=tokenizer.library_tokenizer if isinstance(tokenizer, PretrainedTokenizer) else None,
            max_tokens=self._max_tokens,
        )

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

    def _build_tokenizer(self) -> Tokenizer:
        from shoestring_recipes.legal.tokens import HashedWords, PretrainedTokenizer

        if self._hierarchical:
            from shoestring_recipes.legal.hierarchical import SIZES

            return HashedWords(SIZES[self.options.size]["vocabulary"])
        require("legal", "transformers")
        if self._encoder is not None:
            return PretrainedTokenizer(self._encoder, download=self.options.download)
        from shoestring_recipes.legal.classifier import vocabulary_size

        return HashedWords(vocabulary_size(self.options.size))

    def _dataset_builder(self) -> Callable[[list[Document]], Any]:
        """Return a function from judgments to their dataset."""
        words, sentences = self._max_tokens, self.options.max_sentences
        if self.options.vectors is not None:
            from shoestring_recipes.legal.vectors import Vectors

            return partial(Vectors, sentences=sentences)
        tokenizer = self._build_tokenizer()
        if self._hierarchical:
            from shoestring_recipes.legal.judgments import Judgments

            return partial(Judgments, tokenizer=tokenizer, words=words, sentences=sentences)
        from shoestring_recipes.legal.sentences import Sentences

        return partial(Sentences, tokenizer=tokenizer, context=self.options.context, max_tokens=words)


def _count_sentences(documents: Sequence[Document]) -> int:
    return sum(len(document.sentences) for document in documents)
