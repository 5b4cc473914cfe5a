"""`legal`: which part does each sentence play in a judgment?

Two networks. The classifier is BERT over a sentence and those around it; pretrained weights are `encoder`'s, for one
law-ai/InLegalBERT. The hierarchical BiLSTM-CRF reads a judgment as a whole and names all of its roles at once; there a
sample is a judgment, and so the effective batch counts judgments.

What either is worth shows against always naming the most frequent role, so `evaluate` reports both. Needs
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
from shoestring.recipes.legal.split import divided, is_fold
from shoestring.recipes.rows import OnBadRows, Rows
from shoestring.units import count_text

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

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
"""Updates; of a run of less than 5,000 a tenth."""

RULES: tuple[tuple[tuple[str, ...], str, Callable[[Any], bool]], ...] = (
    (("patience", "max_sentences", "vectors"), "at least 1", lambda value: value >= 1),
    (("seq_len",), "at least 8 and at most 512", lambda value: 8 <= value <= 512),
    (("fold",), "like 3/5, the third of five, or all", is_fold),
    (("learning_rate",), "more than 0", lambda value: value > 0),
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What may be chosen."""

    architecture: Annotated[
        Literal["classifier", "hier_bilstm_crf"], "BERT over each sentence, or LSTMs and a CRF over whole judgments"
    ] = "classifier"
    size: Annotated[Literal["full", "tiny"], "the published size, or a small one to try things with"] = "full"
    encoder: Annotated[
        str | None, "BERT weights to begin with: a folder, or a name on the hub (law-ai/InLegalBERT); none: random ones"
    ] = None
    download: Annotated[bool, "whether an encoder that is not on this machine may be fetched from the hub"] = False
    data: Annotated[
        Path | None,
        "sentence<TAB>role lines, a blank one between judgments: a file, a folder of files, or one with train, "
        "validation and test; none: synthetic judgments",
    ] = None
    roles: Annotated[str, "what roles there are: legalseg, law-ai, build, or their names with commas between"] = (
        "legalseg"
    )
    on_bad_rows: Annotated[OnBadRows, "refuse data with rows that cannot be used, or skip and count them"] = "refuse"
    fold: Annotated[
        str | None, "3/5: test on the third of five shares of the judgments; all: hold none out; none: 80/10/10 %"
    ] = None
    context: Annotated[
        Literal["single", "previous", "two_previous", "surrounding"],
        "the sentences that the classifier reads before, or also after, the one to classify",
    ] = "previous"
    class_weights: Annotated[
        Literal["none", "inverse"], "sentences alike in the classifier's loss, or by how rare their role is"
    ] = "none"
    epochs: Annotated[int, "passes over the training data"] = 5
    effective_batch: Annotated[int, "samples in one update: sentences, or judgments of hier_bilstm_crf"] = 16
    seed: Annotated[int, "decides initialisation, sample order and dropout"] = 42
    seq_len: Annotated[
        int | None, "tokens of a sentence with its context at most; none: 512, for hier_bilstm_crf 128 words a sentence"
    ] = None
    max_sentences: Annotated[int, "hier_bilstm_crf reads longer judgments in parts"] = 512
    vectors: Annotated[
        int | None, "hier_bilstm_crf reads sentences as so many numbers each: f1 f2 ...<TAB>role; none: as words"
    ] = None
    learning_rate: Annotated[float | None, "peak; none: 2e-5 for BERT, and what suits the others"] = None
    patience: Annotated[int | None, "epochs without a better weighted F1 after which training stops"] = None

    def __post_init__(self) -> None:
        problems = [
            f"{name}={value}: must be {rule}"
            for names, rule, holds in RULES
            for name in names
            if (value := getattr(self, name)) is not None and not holds(value)
        ]
        if wrong := roles.problem(self.roles):
            problems.append(wrong)
        if self.architecture == "hier_bilstm_crf":
            if self.encoder is not None:
                problems.append(f"encoder={self.encoder}: hier_bilstm_crf reads words, not an encoder's")
            if self.class_weights != "none":
                problems.append(f"class_weights={self.class_weights}: a CRF's loss is of a judgment, not of a sentence")
            if self.vectors is not None and self.data is None:
                problems.append(f"vectors={self.vectors}: the synthetic judgments are words; set data as well")
        elif self.vectors is not None:
            problems.append(f"vectors={self.vectors}: the classifier reads words; set architecture=hier_bilstm_crf")
        elif self.encoder is not None and Path(self.encoder).is_dir() and not Path(self.encoder).is_absolute():
            problems.append(f"encoder={self.encoder}: write the folder's whole path; sessions begin in other places")
        if problems:
            raise UsageError("options of legal cannot be used", problems=problems)


class Legal:
    """The rhetorical roles of the sentences of judgments."""

    best = ("weighted_f1", "max")
    clip_norm = 1.0

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self._frequencies: list[int] = []
        self._said: list[str] = []

    def model(self) -> nn.Module:
        """Raises UsageError where the extra is not installed, or the encoder cannot be read."""
        count, size = len(self._roles), self.options.size
        if self._hierarchical:
            from shoestring.recipes.legal.hierarchy import SIZES, HierarchicalBiLSTM

            return HierarchicalBiLSTM(roles=count, given=self.options.vectors, **SIZES[size])
        require("legal", "transformers")
        from shoestring.recipes.legal.classifier import classifier

        return classifier(size, count, self.options.encoder, download=self.options.download)

    def batch(self, size: int) -> Any:
        """Of the classifier (size, seq_len) int64 token ids, their mask (size, seq_len) int64 and roles (size,) int64;
        of the other what `judgments.largest` or `vectors.largest` gives.
        """
        import torch

        if self.options.vectors is not None:
            from shoestring.recipes.legal import vectors

            return vectors.largest(size, width=self.options.vectors, sentences=self.options.max_sentences)
        if self._hierarchical:
            from shoestring.recipes.legal.judgments import largest

            return largest(size, words=self._longest, sentences=self.options.max_sentences)
        tokens = torch.ones(size, self._longest, dtype=torch.int64)
        mask = tokens.clone()
        # Sentences differ in length, and without any padding attention would take a path that no real batch takes.
        mask[0, -1] = 0
        return tokens, mask, torch.zeros(size, dtype=torch.int64)

    def loss(self, model: Any, batch: Any) -> Tensor | tuple[Tensor, Tensor]:
        """Mean cross-entropy over the sentences; with weights for the roles, or of a CRF, a sum and its weight."""
        from torch.nn.functional import cross_entropy

        if self._hierarchical:
            return model.crf(model(batch), batch["roles"], batch["mask"]).sum(), batch["mask"].sum()
        tokens, mask, truth = batch
        logits = model(tokens, mask)
        if self.options.class_weights == "none":
            return cross_entropy(logits, truth)
        weights = logits.new_tensor(self._weights)
        return cross_entropy(logits, truth, weights, reduction="sum"), weights[truth].sum()

    def data(self) -> dict[str, Any]:
        """`train`, `validation` and `test` by judgments, as `split.divided` says.

        Raises DataError for what is wrong with the files, all at once, UsageError where the extra is not installed.
        """
        parts = divided(self._documents(), self.options.fold)
        self._frequencies = [0] * len(self._roles)
        for document in parts["train"]:
            for role in document.roles:
                self._frequencies[role] += 1
        counts = [f"{name} {len(each)} ({count_text(_sentences(each))} sentences)" for name, each in parts.items()]
        self._said.append(f"judgments: {', '.join(counts)}")
        if self.options.vectors is not None:
            from shoestring.recipes.legal.vectors import Vectors

            return {name: Vectors(each, sentences=self.options.max_sentences) for name, each in parts.items()}
        tokenizer = self._tokenizer()
        return {name: self._samples(documents, tokenizer) for name, documents in parts.items()}

    def notes(self) -> list[str]:
        """What the data are, rows that were skipped, and weights that are random."""
        if self.options.encoder is None and not self._hierarchical and self.options.size == "full":
            return [
                *self._said,
                "BERT's weights are random and words are read by their hash; --set encoder=law-ai/InLegalBERT (or a "
                "folder) begins with pretrained ones and their tokenizer",
            ]
        return self._said

    def collate(self, samples: Sequence[Any]) -> Any:
        """Padded to the longest of them; for the other network `judgments.collate`."""
        if self.options.vectors is not None:
            from shoestring.recipes.legal import vectors

            return vectors.collate(samples)
        if self._hierarchical:
            from shoestring.recipes.legal.judgments import collate

            return collate(samples)
        from shoestring.data.padding import pad_batch

        return pad_batch(samples, (0, 0, None))

    def length(self, dataset: Any, index: int) -> int:
        """Tokens of a sentence with its context, or sentences of a judgment."""
        return int(dataset.length(index))

    def label(self, dataset: Any, index: int) -> int:
        """The role of a sentence; a judgment has none."""
        return 0 if self._hierarchical else int(dataset.roles[index])

    def optimizer(self, model: nn.Module) -> Optimizer:
        import torch

        own = self.options.learning_rate
        rate = LEARNING_RATES[self.options.architecture, self.options.size] if own is None else own
        return torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=WEIGHT_DECAY)

    def schedule(self, update: int, _updates_per_epoch: int, total_updates: int) -> float:
        """A rise over the first updates, then straight down to almost 0."""
        warm_up = min(WARM_UP, max(1, total_updates // 10))
        if update < warm_up:
            return (update + 1) / warm_up
        return (total_updates - update) / max(1, total_updates - warm_up)

    @property
    def patience(self) -> int | None:
        return self.options.patience

    def evaluate(self, model: Any, batches: Iterable[Any]) -> dict[str, Any]:
        """`loss` without weights for the roles, and what `metrics.scores` says of all sentences."""
        import torch
        from torch.nn.functional import cross_entropy

        from shoestring.recipes.legal.metrics import scores

        losses, predicted, labels = [], [], []
        for batch in batches:
            if self._hierarchical:
                emissions, truth, mask = model(batch), batch["roles"], batch["mask"]
                losses.append(model.crf(emissions, truth, mask).sum())
                predicted.append(model.crf.best(emissions, mask)[mask])
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
    def _hierarchical(self) -> bool:
        return self.options.architecture == "hier_bilstm_crf"

    @property
    def _roles(self) -> tuple[str, ...]:
        return roles.names(self.options.roles)

    @property
    def _longest(self) -> int:
        """Tokens of a text at most."""
        return self.options.seq_len or (128 if self._hierarchical else 512)

    @property
    def _weights(self) -> list[float]:
        """Of each role: the mean frequency in the training data by its own. Without data, for planning, all alike."""
        known = self._frequencies or [1] * len(self._roles)
        return [sum(known) / (len(known) * max(1, count)) for count in known]

    def _documents(self) -> dict[str, list[Document]]:
        """The judgments, by part where their files say so."""
        if self.options.data is not None:
            from shoestring.recipes.legal.documents import read

            rows = Rows(self.options.on_bad_rows)
            found = read(self.options.data, roles.numbers(self._roles), rows, self._wrong)
            self._said = list(rows.notes)
            return found
        from shoestring.recipes.legal import synthetic

        if self.options.roles != "legalseg":
            raise UsageError(
                f"roles={self.options.roles}: the synthetic judgments have those of legalseg", hint="--set data=PATH"
            )
        made = synthetic.judgments()
        self._said = [synthetic.NOTE.format(judgments=len(made))]
        return {"all": made}

    def _wrong(self, sentence: str) -> str | None:
        """Why a sentence of a file cannot be used."""
        if self.options.vectors is None:
            return None
        from shoestring.recipes.legal.vectors import wrong

        return wrong(sentence, self.options.vectors)

    def _tokenizer(self) -> Tokenizer:
        from shoestring.recipes.legal.tokens import HashedWords, Pieces

        if self._hierarchical:
            from shoestring.recipes.legal.hierarchy import SIZES

            return HashedWords(SIZES[self.options.size]["vocabulary"])
        require("legal", "transformers")
        if self.options.encoder is not None:
            return Pieces(self.options.encoder, download=self.options.download)
        from shoestring.recipes.legal.classifier import vocabulary

        return HashedWords(vocabulary(self.options.size))

    def _samples(self, documents: list[Document], tokenizer: Tokenizer) -> Any:
        """The dataset of one part."""
        if self._hierarchical:
            from shoestring.recipes.legal.judgments import Judgments

            return Judgments(documents, tokenizer, words=self._longest, sentences=self.options.max_sentences)
        from shoestring.recipes.legal.sentences import Sentences

        return Sentences(documents, tokenizer, self.options.context, self._longest)


def _sentences(documents: Sequence[Document]) -> int:
    return sum(len(document.sentences) for document in documents)
