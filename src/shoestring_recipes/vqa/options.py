"""The options of `vqa`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from shoestring.base.config import too_small
from shoestring.base.errors import UsageError
from shoestring.recipe.option_notes import Cheaper
from shoestring_recipes.rows import OnBadRows


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `vqa`."""

    by_size: ClassVar[Mapping[str, Mapping[str, Any]]] = {"tiny": {"epochs": 2, "effective_batch": 16}}

    size: Annotated[Literal["full", "tiny"], "the published size, or a model of a hundred thousand parameters"] = "full"
    data: Annotated[
        Path | None,
        "teacher_outputs.jsonl or its folder; none: synthetic questions about the real digits of scikit-learn",
    ] = None
    images: Annotated[Path | None, "folder that image paths are relative to; none: the folder of the data"] = None
    split: Annotated[
        Literal["by_image", "no"], "80/10/10 % of the images train, validate and test; no: all data train"
    ] = "by_image"
    on_bad_rows: Annotated[OnBadRows, "refuse data with unusable rows or images, or skip and count these rows"] = (
        "refuse"
    )
    incomplete_rows: Annotated[
        Literal["refuse", "neutral"],
        "rows without a reasoning_type or a teacher_reasoning: unusable, or of the type NEUTRAL and with an empty "
        "reasoning, as the published loader takes them",
    ] = "refuse"
    vision_from: Annotated[str | None, "pretrained BLIP, a folder or a name on the hub; none: random weights"] = None
    text_from: Annotated[str | None, "pretrained PhoBERT and its tokenizer, like vision_from"] = None
    writer_from: Annotated[str | None, "pretrained ViT5 and its tokenizer, like vision_from"] = None
    download: Annotated[bool, "whether weights and tokenizers may be downloaded from the hub"] = False
    epochs: Annotated[int, "passes over the training data"] = 100
    effective_batch: Annotated[int, "samples in one update"] = 9
    seed: Annotated[int, "seed of the initialization, sample order and dropout"] = 42
    q_len: Annotated[
        int | None,
        "maximum number of tokens of a question, up to 256; none: 64, or 32 for tiny",
        Cheaper("shorter questions", order=1),
    ] = None
    a_len: Annotated[
        int | None,
        "maximum number of tokens of a target text; none: 160, or 48 for tiny",
        Cheaper("shorter target texts"),
    ] = None
    learning_rate: Annotated[float | None, "peak learning rate; none: 1e-5, or 5e-3 for tiny"] = None
    patience: Annotated[int, "epochs without an improvement of token_f1 after which training stops"] = 15
    beams: Annotated[int, "number of beams of beam search in evaluation", Cheaper("fewer beams", order=2)] = 4
    forwards: Annotated[
        Literal["shared", "guide"],
        "shared: one encoding for all three texts, the answer as the beginning of the whole text, fused attention; "
        "guide: a complete forward for each text, as published",
    ] = "shared"

    def __post_init__(self) -> None:
        problems = too_small(vars(self), {"q_len": 1, "a_len": 1, "patience": 1, "beams": 1})
        if self.q_len is not None and self.q_len > 256:
            problems.append(f"q_len={self.q_len}: must be at most 256, the number of PhoBERT's positions")
        if self.learning_rate is not None and self.learning_rate <= 0:
            problems.append(f"learning_rate={self.learning_rate}: must be more than 0")
        if problems:
            raise UsageError("options of vqa cannot be used", problems=problems)
        for name in ("vision_from", "text_from", "writer_from"):
            folder = getattr(self, name)
            if folder is not None and Path(folder).exists():
                # A session that resumes a run may have another working directory.
                object.__setattr__(self, name, str(Path(folder).absolute()))
