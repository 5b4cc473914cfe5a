"""The `legal` recipe: classify the rhetorical role of each sentence of a court judgment.

There are two networks. The classifier is BERT over a sentence and its context; pretrained weights come from the option
`encoder`, for example law-ai/InLegalBERT. The hierarchical BiLSTM-CRF labels all sentences of a judgment at once; its
samples are judgments, so the effective batch counts judgments.

The baseline always predicts the most frequent role, so `evaluate` reports the metrics of both. Needs
`pip install 'shoestring[legal]'`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from shoestring.errors import UsageError
from shoestring.recipe.extras import require
from shoestring.recipes.legal import roles
from shoestring.recipes.legal.split import is_fold, split_documents
from shoestring.recipes.rows import BadRows, OnBadRows
from shoestring.units import count_text

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from shoestring.recipe.exports import Exported, Format, OnnxGraph
    from shoestring.recipes.legal.documents import Document
    from shoestring.recipes.legal.tokens import Tokenizer

LEARNING_RATES = {
    ("classifier", "full"): 2e-5,
    ("classifier", "tiny"): 3e-3,
    ("hier_bilstm_crf", "full"): 3e-3,
    ("hier_bilstm_crf", "tiny"): 1e-2,
}
WEIGHT_DECAY = 0.01
WARM_UP = 500
"""Updates of warm-up; a run of less than 5,000 updates has a tenth of its updates instead."""

RULES: tuple[tuple[tuple[str, ...], str, Callable[[Any], bool]], ...] = (
    (("patience", "max_sentences", "vectors"), "at least 1", lambda value: value >= 1),
    (("seq_len",), "at least 8 and at most 512", lambda value: 8 <= value <= 512),
    (("fold",), "like 3/5, the third of five, or all", is_fold),
    (("learning_rate",), "more than 0", lambda value: value > 0),
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the recipe."""

    architecture: Annotated[
        Literal["classifier", "hier_bilstm_crf"], "BERT over each sentence, or LSTMs and a CRF over whole judgments"
    ] = "classifier"
    size: Annotated[Literal["full", "tiny"], "the published size, or a small one for experiments"] = "full"
    encoder: Annotated[
        str | None, "pretrained BERT: a folder, or a name on the hub (law-ai/InLegalBERT); none: random weights"
    ] = None
    download: Annotated[bool, "allow downloading the encoder from the hub if it is not on this machine"] = False
    data: Annotated[
        Path | None,
        "sentence<TAB>role lines, a blank line between judgments: a file, a folder of files, or a folder with train, "
        "validation and test; none: synthetic judgments",
    ] = None
    roles: Annotated[str, "the set of roles: legalseg, law-ai, build, or their names separated by commas"] = "legalseg"
    on_bad_rows: Annotated[OnBadRows, "stop on unusable rows, or skip and count them"] = "refuse"
    fold: Annotated[
        str | None,
        "3/5: test on the third of five folds of the judgments; all: train on all judgments; none: 80/10/10 %",
    ] = None
    context: Annotated[
        Literal["single", "previous", "two_previous", "surrounding"],
        "context of the classifier: sentences before, or before and after, the one to classify",
    ] = "previous"
    class_weights: Annotated[
        Literal["none", "inverse"], "equal weights in the classifier's loss, or the inverse frequency of each role"
    ] = "none"
    epochs: Annotated[int, "passes over the training data"] = 5
    effective_batch: Annotated[int, "samples in one update: sentences, or judgments for hier_bilstm_crf"] = 16
    seed: Annotated[int, "seed of the initialisation, sample order and dropout"] = 42
    seq_len: Annotated[
        int | None,
        "largest number of tokens of a sentence with its context; none: 512, for hier_bilstm_crf 128 words a sentence",
    ] = None
    max_sentences: Annotated[int, "largest number of sentences of a judgment; hier_bilstm_crf splits longer ones"] = 512
    vectors: Annotated[
        int | None,
        "hier_bilstm_crf reads precomputed vectors of this width, f1 f2 ...<TAB>role; none: words",
    ] = None
    learning_rate: Annotated[
        float | None,
        "peak learning rate; none: 2e-5 for BERT at full size, and a default for each other network and size",
    ] = None
    patience: Annotated[int | None, "stop after this many epochs without a better weighted F1; none: never"] = None

    def __post_init__(self) -> None:
        problems = [
            f"{name}={value}: must be {rule}"
            for names, rule, is_valid in RULES
            for name in names
            if (value := getattr(self, name)) is not None and not is_valid(value)
        ]
        if problem := roles.roles_problem(self.roles):
            problems.append(problem)
        if self.architecture == "hier_bilstm_crf":
            if self.encoder is not None:
                problems.append(f"encoder={self.encoder}: hier_bilstm_crf has no pretrained encoder")
            if self.class_weights != "none":
                problems.append(
                    f"class_weights={self.class_weights}: the loss of a CRF is that of a judgment, not of a sentence"
                )
            if self.vectors is not None and self.data is None:
                problems.append(f"vectors={self.vectors}: the synthetic judgments have no vectors; set data as well")
        elif self.vectors is not None:
            problems.append(f"vectors={self.vectors}: the classifier takes words; set architecture=hier_bilstm_crf")
        elif self.encoder is not None and Path(self.encoder).is_dir() and not Path(self.encoder).is_absolute():
            problems.append(
                f"encoder={self.encoder}: must be an absolute path, because sessions may start in other folders"
            )
        if problems:
            raise UsageError("options of legal cannot be used", problems=problems)


class Legal:
    """Classification of the rhetorical roles of the sentences of judgments."""

    best = ("weighted_f1", "max")
    clip_norm = 1.0

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self._frequencies: list[int] = []
        self._data_notes: list[str] = []

    def model(self) -> nn.Module:
        """Return the network. Raises UsageError if the extra is not installed or the encoder cannot be read."""
        count, size = len(self._roles), self.options.size
        if self._hierarchical:
            from shoestring.recipes.legal.hierarchical import SIZES, HierarchicalBiLSTM

            return HierarchicalBiLSTM(roles=count, vector_width=self.options.vectors, **SIZES[size])
        require("legal", "transformers")
        from shoestring.recipes.legal.classifier import build_classifier

        return build_classifier(size, count, self.options.encoder, download=self.options.download)

    def batch(self, size: int) -> Any:
        """Return the largest batch of the network.

        For the classifier: token ids (size, seq_len) int64, their mask (size, seq_len) int64 and roles (size,) int64.
        For the other network: see `judgments.largest_batch` and `vectors.largest_batch`.
        """
        import torch

        if self.options.vectors is not None:
            from shoestring.recipes.legal import vectors

            return vectors.largest_batch(size, width=self.options.vectors, sentences=self.options.max_sentences)
        if self._hierarchical:
            from shoestring.recipes.legal.judgments import largest_batch

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
        self._frequencies = [0] * len(self._roles)
        for document in parts["train"]:
            for role in document.roles:
                self._frequencies[role] += 1
        counts = [
            f"{name} {len(documents)} ({count_text(_count_sentences(documents))} sentences)"
            for name, documents in parts.items()
        ]
        self._data_notes.append(f"judgments: {', '.join(counts)}")
        if self.options.vectors is not None:
            from shoestring.recipes.legal.vectors import Vectors

            return {name: Vectors(documents, sentences=self.options.max_sentences) for name, documents in parts.items()}
        tokenizer = self._build_tokenizer()
        return {name: self._build_dataset(documents, tokenizer) for name, documents in parts.items()}

    def notes(self) -> list[str]:
        """Return sentences about the data, skipped rows and random weights."""
        if self.options.encoder is None and not self._hierarchical and self.options.size == "full":
            return [
                *self._data_notes,
                "BERT's initial weights are random and its tokens are hashed words; --set encoder=law-ai/InLegalBERT "
                "(or a folder) uses pretrained weights and their tokenizer",
            ]
        return self._data_notes

    def collate(self, samples: Sequence[Any]) -> Any:
        """Return a batch padded to its longest sample; for the other network see `judgments.collate`."""
        if self.options.vectors is not None:
            from shoestring.recipes.legal import vectors

            return vectors.collate(samples)
        if self._hierarchical:
            from shoestring.recipes.legal.judgments import collate

            return collate(samples)
        from shoestring.data.padding import pad_batch

        return pad_batch(samples, (0, 0, None))

    def length(self, dataset: Any, index: int) -> int:
        """Return the number of tokens of a sentence with its context, or of sentences of a judgment."""
        return int(dataset.length(index))

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

    def evaluate(self, model: Any, batches: Iterable[Any]) -> dict[str, Any]:
        """Return `loss` without class weights, and `metrics.scores` over all sentences."""
        import torch
        from torch.nn.functional import cross_entropy

        from shoestring.recipes.legal.metrics import scores

        losses, predicted, labels = [], [], []
        for batch in batches:
            if self._hierarchical:
                emissions, truth, mask = model(batch), batch["roles"], batch["mask"]
                losses.append(model.crf(emissions, truth, mask).sum())
                predicted.append(model.crf.decode(emissions, mask)[mask])
                labels.append(truth[mask])
            else:
                tokens, mask, truth = batch
                logits = model(tokens, mask)
                losses.append(cross_entropy(logits, truth, reduction="sum"))
                predicted.append(logits.argmax(dim=-1))
                labels.append(truth)
        truths = torch.cat(labels).cpu()
        loss = float(torch.stack(losses).double().sum()) / len(truths)
        return {"loss": loss, **scores(torch.cat(predicted).cpu(), truths, self._roles)}

    @property
    def exports(self) -> dict[str, Format]:
        """The classifier is a model of transformers; the other network is not."""
        if self._hierarchical:
            return {}
        from shoestring.recipe.exports import Format

        return {"huggingface": Format(write=self._write_classifier)}

    def onnx(self, model: Any) -> OnnxGraph:
        from shoestring.recipes.legal.export import classifier_graph, emission_graph

        if self._hierarchical:
            return emission_graph(model, self._roles, has_words=self.options.vectors is None)
        return classifier_graph(model, self._roles)

    @property
    def _hierarchical(self) -> bool:
        return self.options.architecture == "hier_bilstm_crf"

    @property
    def _roles(self) -> tuple[str, ...]:
        return roles.role_names(self.options.roles)

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
        from shoestring.recipes.legal.export import write_classifier
        from shoestring.recipes.legal.tokens import PretrainedTokenizer

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
            from shoestring.recipes.legal.documents import read

            bad_rows = BadRows(self.options.on_bad_rows)
            documents = read(self.options.data, roles.class_numbers(self._roles), bad_rows, self._sentence_problem)
            self._data_notes = list(bad_rows.notes)
            return documents
        from shoestring.recipes.legal import synthetic

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
        from shoestring.recipes.legal.vectors import vector_problem

        return vector_problem(sentence, self.options.vectors)

    def _build_tokenizer(self) -> Tokenizer:
        from shoestring.recipes.legal.tokens import HashedWords, PretrainedTokenizer

        if self._hierarchical:
            from shoestring.recipes.legal.hierarchical import SIZES

            return HashedWords(SIZES[self.options.size]["vocabulary"])
        require("legal", "transformers")
        if self.options.encoder is not None:
            return PretrainedTokenizer(self.options.encoder, download=self.options.download)
        from shoestring.recipes.legal.classifier import vocabulary_size

        return HashedWords(vocabulary_size(self.options.size))

    def _build_dataset(self, documents: list[Document], tokenizer: Tokenizer) -> Any:
        """Return the dataset of one part."""
        if self._hierarchical:
            from shoestring.recipes.legal.judgments import Judgments

            return Judgments(documents, tokenizer, words=self._max_tokens, sentences=self.options.max_sentences)
        from shoestring.recipes.legal.sentences import Sentences

        return Sentences(documents, tokenizer, self.options.context, self._max_tokens)


def _count_sentences(documents: Sequence[Document]) -> int:
    return sum(len(document.sentences) for document in documents)
