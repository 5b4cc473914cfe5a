"""The options of `legal`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from shoestring.base.errors import UsageError
from shoestring.recipe.option_notes import Cheaper
from shoestring_recipes.legal import roles
from shoestring_recipes.legal.split import is_fold
from shoestring_recipes.rows import OnBadRows

RULES: tuple[tuple[tuple[str, ...], str, Callable[[Any], bool]], ...] = (
    (("patience", "max_sentences", "vectors"), "at least 1", lambda value: value >= 1),
    (("seq_len",), "at least 8 and at most 512", lambda value: 8 <= value <= 512),
    (("fold",), "like 3/5, the third of five, or all", is_fold),
    (("learning_rate",), "more than 0", lambda value: value > 0),
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the recipe."""

    by_size: ClassVar[Mapping[str, Mapping[str, Any]]] = {"tiny": {"epochs": 3}}

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
    seed: Annotated[int, "seed of the initialization, sample order and dropout"] = 42
    seq_len: Annotated[
        int | None,
        "largest number of tokens of a sentence with its context; none: 512, for hier_bilstm_crf 128 words a sentence",
        Cheaper("shorter sequences"),
    ] = None
    max_sentences: Annotated[int, "largest number of sentences of a judgment; hier_bilstm_crf splits longer ones"] = 512
    vectors: Annotated[
        int | None,
        "hier_bilstm_crf reads precomputed vectors of this width, f1 f2 ...<TAB>role; none: words",
    ] = None
    text: Annotated[
        Literal["auto", "lines", "running"],
        "data for predictions: one sentence on each line, or running text to be split; auto: by the first 200 lines",
    ] = "auto"
    learning_rate: Annotated[
        float | None,
        "peak learning rate; none: 2e-5 for BERT at full size, and a default for each other network and size",
    ] = None
    patience: Annotated[int | None, "stop after this many epochs without a better weighted F1; none: never"] = None

    @property
    def labels_judgments(self) -> bool:
        """Whether a sample is a judgment, whose sentences are labeled at once, rather than a sentence."""
        return self.architecture == "hier_bilstm_crf"

    @property
    def max_tokens(self) -> int:
        """The largest number of tokens of a sentence with its context, or of words of a judgment's sentence."""
        return self.seq_len or (128 if self.labels_judgments else 512)

    def __post_init__(self) -> None:
        problems = [
            f"{name}={value}: must be {rule}"
            for names, rule, is_valid in RULES
            for name in names
            if (value := getattr(self, name)) is not None and not is_valid(value)
        ]
        if problem := roles.roles_problem(self.roles):
            problems.append(problem)
        if self.labels_judgments:
            if self.encoder is not None:
                problems.append(f"encoder={self.encoder}: hier_bilstm_crf has no pretrained encoder")
            if self.class_weights != "none":
                problems.append(
                    f"class_weights={self.class_weights}: the loss of a CRF is that of a judgment, not of a sentence"
                )
            if self.vectors is not None and self.data is None:
                problems.append(f"vectors={self.vectors}: the synthetic judgments have no vectors; set data as well")
            if self.vectors is not None and self.text == "running":
                problems.append("text=running: vectors are one on each line; set text=lines")
        elif self.vectors is not None:
            problems.append(f"vectors={self.vectors}: the classifier takes words; set architecture=hier_bilstm_crf")
        elif self.encoder is not None and Path(self.encoder).is_dir() and not Path(self.encoder).is_absolute():
            problems.append(
                f"encoder={self.encoder}: must be an absolute path, because sessions may start in other folders"
            )
        if problems:
            raise UsageError("options of legal cannot be used", problems=problems)
