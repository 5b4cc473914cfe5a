"""`vqa`: a small student learns to answer questions about images, and to say why, from a large teacher's texts.

A vision transformer and a Vietnamese text encoder meet in one vector, from which a T5 writes. Three texts are learnt
for each image: the whole in its format, the answer alone, and the reasoning alone. What each of them weighs changes in
stages over the run. Needs `pip install 'shoestring[vqa]'`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from shoestring.config import too_small
from shoestring.errors import UsageError
from shoestring.recipe.extras import require
from shoestring.recipes.rows import OnBadRows
from shoestring.recipes.vqa import curriculum

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from shoestring.recipes.vqa.dataset import Dataset
    from shoestring.recipes.vqa.parts import Source
    from shoestring.recipes.vqa.student import Batch, Student

WEIGHT_DECAY = 0.01
LEARNING_RATES = {"full": 1e-5, "tiny": 5e-3}
LENGTHS = {"full": (64, 160), "tiny": (32, 48)}
"""Tokens of a question and of a text to learn, at most."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What may be chosen."""

    size: Annotated[Literal["full", "tiny"], "the published size, or a hundred thousand parameters"] = "full"
    data: Annotated[
        Path | None,
        "teacher_outputs.jsonl or its folder; none: synthetic questions over the real digits that scikit-learn brings",
    ] = None
    images: Annotated[Path | None, "folder that image paths are relative to; none: the data's own"] = None
    split: Annotated[
        Literal["by_image", "no"], "80/10/10 % of the images train, validate and test, or all data are one part"
    ] = "by_image"
    on_bad_rows: Annotated[OnBadRows, "refuse data with a row or an image that cannot be used, or skip and count"] = (
        "refuse"
    )
    vision_from: Annotated[str | None, "pretrained BLIP, a folder or a name on the hub; none: random weights"] = None
    text_from: Annotated[str | None, "pretrained PhoBERT and its tokenizer, as vision_from"] = None
    writer_from: Annotated[str | None, "pretrained ViT5 and its tokenizer, as vision_from"] = None
    download: Annotated[bool, "whether weights and tokenizers may come from the hub"] = False
    epochs: Annotated[int, "passes over the training data"] = 100
    effective_batch: Annotated[int, "samples in one update"] = 9
    seed: Annotated[int, "decides initialisation, sample order and dropout"] = 42
    q_len: Annotated[int | None, "tokens of a question at most, up to 256; none: 64, tiny 32"] = None
    a_len: Annotated[int | None, "tokens of a text to learn at most; none: 160, tiny 48"] = None
    learning_rate: Annotated[float | None, "peak; none: 1e-5, tiny 5e-3"] = None
    patience: Annotated[int, "epochs without better answers (token_f1) after which training stops"] = 15
    beams: Annotated[int, "texts that beam search follows in evaluation"] = 4
    forwards: Annotated[
        Literal["shared", "guide"],
        "nothing twice: one encoding for all three texts, the answer as the whole's beginning, fused attention; or as "
        "published, all of it for each text",
    ] = "shared"

    def __post_init__(self) -> None:
        problems = too_small(vars(self), {"q_len": 1, "a_len": 1, "patience": 1, "beams": 1})
        if self.q_len is not None and self.q_len > 256:
            problems.append(f"q_len={self.q_len}: PhoBERT has positions for 256 tokens")
        if self.learning_rate is not None and self.learning_rate <= 0:
            problems.append(f"learning_rate={self.learning_rate}: must be more than 0")
        if problems:
            raise UsageError("options of vqa cannot be used", problems=problems)
        for name in ("vision_from", "text_from", "writer_from"):
            folder = getattr(self, name)
            if folder is not None and Path(folder).exists():
                # The working directory of the session that continues a run is another one.
                object.__setattr__(self, name, str(Path(folder).absolute()))


class VQA:
    """Answers to questions about images, with their reasons, learnt from a teacher's texts."""

    best = ("token_f1", "max")
    clip_norm = 1.0

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self._of_data: list[str] = []

    def model(self) -> nn.Module:
        """Raises UsageError where the extra is not installed, or pretrained weights are not all there."""
        from shoestring.recipes.vqa.attention import fuse

        student = self._source.student()
        if self.options.forwards == "shared":
            fuse(student.vision)
        return student

    def blocks(self, model: Student) -> list[nn.Module]:
        """The decoder's first: those that the published system computes again in backward."""
        return model.blocks()

    def batch(self, size: int) -> Batch:
        """All texts as long as they may be, filled up to the multiple of 8 that real ones are."""
        import torch

        from shoestring.recipes.vqa.student import Batch

        pixels = self._source.configuration("vision").image_size
        q_len, a_len = (-(-length // 8) * 8 for length in self._lengths)
        questions = torch.ones(size, q_len, dtype=torch.int64)
        mask = questions.clone()
        # Questions differ in length, and without any padding attention would take a path that no real batch takes.
        mask[0, -1] = 0
        whole, answer, reasoning = (torch.ones(size, a_len, dtype=torch.int64) for _ in range(3))
        return Batch(
            images=torch.zeros(size, 3, pixels, pixels),
            questions=questions,
            mask=mask,
            whole=whole,
            answer=answer,
            reasoning=reasoning,
            weights=torch.ones(size),
            samples=[],
        )

    def stage(self, update: int, updates_per_epoch: int, total_updates: int) -> curriculum.Stage:
        """What each of the three texts weighs in an update."""
        return curriculum.stage(update // updates_per_epoch, total_updates // updates_per_epoch)

    def loss(self, model: Student, batch: Batch, stage: curriculum.Stage = curriculum.ANSWER_FOCUS) -> Tensor:
        """The weighted sum over the three texts; of each the mean over samples of the mean over a sample's tokens.

        Every sample weighs the same, so that an update does not depend on how it is split; its reasoning weighs by
        its kind.
        """
        from shoestring.recipes.vqa.student import mean_over_tokens

        if self.options.forwards == "guide":
            whole, answer, reasoning = (
                model.cross_entropy(model.encode(batch.images, batch.questions, batch.mask), text)
                for text in (batch.whole, batch.answer, batch.reasoning)
            )
        else:
            context = model.encode(batch.images, batch.questions, batch.mask)
            tokens = model.token_losses(context, batch.whole)
            whole = mean_over_tokens(tokens, batch.whole)
            # What comes later in a text does not change what is thought of its beginning.
            answer = mean_over_tokens(tokens[:, : batch.answer.shape[1]], batch.answer)
            reasoning = model.cross_entropy(context, batch.reasoning)
        weighted = stage.format * whole + stage.answer * answer + stage.reasoning * reasoning * batch.weights
        return weighted.mean()

    def data(self) -> dict[str, Dataset]:
        """`train`, `validation` and `test`, no image in two of them; `train` alone where it is not to be split.

        Raises UsageError where the extra is not installed, DataError for data that cannot be trained on.
        """
        require("vqa", "transformers", "sklearn")
        from functools import partial

        from shoestring.recipes.rows import Rows
        from shoestring.recipes.vqa import dataset, digits, samples, teacher

        options, source = self.options, self._source
        if options.data is None:
            found, picture, notes = digits.samples(), digits.picture, [digits.NOTE]
        else:
            rows = Rows(options.on_bad_rows)
            found, picture, notes = teacher.read(options.data, options.images, rows), teacher.picture, rows.notes
        parts = samples.split(found) if options.split == "by_image" else {"train": found}
        q_len, a_len = self._lengths
        encode = partial(
            dataset.encode, questions=source.tokens("text"), texts=source.tokens("writer"), q_len=q_len, a_len=a_len
        )
        encoded = {name: [encode(sample) for sample in part] for name, part in parts.items()}
        cut = sum(one.cut for part in encoded.values() for one in part)
        if cut:
            notes = [*notes, f"{cut:,} of {len(found):,} texts are longer than q_len={q_len} or a_len={a_len}, and cut"]
        self._of_data = notes
        return {
            name: dataset.Dataset(
                part,
                encoded[name],
                picture,
                side=source.configuration("vision").image_size,
                mean_weight=dataset.mean_weight(parts["train"]),
            )
            for name, part in parts.items()
        }

    def notes(self) -> list[str]:
        return [*self._of_data, *self._source.notes()]

    def collate(self, samples: list[tuple[object, ...]]) -> Batch:
        from shoestring.recipes.vqa import dataset

        return dataset.collate(samples, padding=self._source.tokens("text").pad)

    def length(self, dataset: Dataset, index: int) -> int:
        return dataset.length(index)

    def label(self, dataset: Dataset, index: int) -> str:
        return dataset.kind(index)

    def optimizer(self, model: nn.Module) -> Optimizer:
        import torch

        return torch.optim.AdamW(model.parameters(), lr=self._peak, weight_decay=WEIGHT_DECAY)

    def schedule(self, update: int, updates_per_epoch: int, total_updates: int) -> float:
        """A cosine with warm restarts."""
        return curriculum.rate(update / updates_per_epoch, total_updates // updates_per_epoch, self._peak)

    @property
    def patience(self) -> int:
        return self.options.patience

    def evaluate(self, model: Student, batches: Iterable[Batch]) -> dict[str, Any]:
        """What beam search writes, as `metrics.scores` has it; `loss` is that of the whole text, whatever the stage."""
        from shoestring.recipes.vqa.metrics import scores
        from shoestring.recipes.vqa.texts import BEGIN

        tokens = self._source.tokens("writer")
        beginning, longest = tokens.encode(BEGIN), self._lengths[1]
        losses, written, samples = [], [], []
        for batch in batches:
            context = model.encode(batch.images, batch.questions, batch.mask)
            losses.append(model.cross_entropy(context, batch.whole).double().sum())
            found = model.write(context, beginning, beams=self.options.beams, longest=longest)
            written += [tokens.decode(text) for text in found]
            samples += batch.samples
        return {"loss": sum(map(float, losses)) / len(samples), **scores(written, samples)}

    @property
    def _source(self) -> Source:
        require("vqa", "transformers")
        from shoestring.recipes.vqa.parts import PARTS, Source

        options = self.options
        folders = {name: getattr(options, f"{name}_from") for name in PARTS}
        return Source(size=options.size, folders=folders, download=options.download)

    @property
    def _lengths(self) -> tuple[int, int]:
        """Of questions and of texts to learn, in tokens at most."""
        q_len, a_len = LENGTHS[self.options.size]
        return self.options.q_len or q_len, self.options.a_len or a_len

    @property
    def _peak(self) -> float:
        return self.options.learning_rate or LEARNING_RATES[self.options.size]
