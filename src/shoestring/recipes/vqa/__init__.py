"""`vqa`: a small student learns to answer questions about images, and to say why, from a large teacher's texts.

A vision transformer and a Vietnamese text encoder meet in one vector, from which a T5 writes. Three texts are learnt
for each image: the whole in its format, the answer alone, and the reasoning alone. Needs
`pip install 'shoestring[vqa]'`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from shoestring.config import too_small
from shoestring.errors import QuestionError
from shoestring.extras import require

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from shoestring.recipes.vqa.student import Batch, Student

WEIGHT_DECAY = 0.01
TARGETS = {"format": 0.60, "answer": 0.35, "reasoning": 0.05}
"""The texts to learn and what each weighs in the loss, in the published curriculum's first stage."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What may be chosen."""

    size: Annotated[Literal["full", "tiny"], "the published size, or some ten thousand parameters"] = "full"
    epochs: Annotated[int, "passes over the training data"] = 100
    effective_batch: Annotated[int, "samples in one update"] = 9
    seed: Annotated[int, "decides initialisation, sample order and dropout"] = 42
    q_len: Annotated[int, "tokens of a question at most, up to 256"] = 64
    a_len: Annotated[int, "tokens of a text to learn at most"] = 160
    learning_rate: Annotated[float, "peak"] = 1e-5
    forwards: Annotated[
        Literal["shared", "guide"], "encode image and question once for all three texts, or as published for each"
    ] = "shared"

    def __post_init__(self) -> None:
        problems = too_small(vars(self), {"q_len": 1, "a_len": 1})
        if self.q_len > 256:
            problems.append(f"q_len={self.q_len}: PhoBERT has positions for 256 tokens")
        if self.learning_rate <= 0:
            problems.append(f"learning_rate={self.learning_rate}: must be more than 0")
        if problems:
            raise QuestionError("options of vqa cannot be used", problems=problems)


class VQA:
    """Answers to questions about images, with their reasons, learnt from a teacher's texts.

    It can be estimated and planned; its data, and with it training, come later.
    """

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()

    def model(self) -> nn.Module:
        """Raises QuestionError where the extra is not installed."""
        require("vqa", "transformers")
        from shoestring.recipes.vqa.student import SIZES, Student

        return Student(SIZES[self.options.size])

    def blocks(self, model: Student) -> list[nn.Module]:
        """The decoder's first: those that the published system computes again in backward."""
        return model.blocks()

    def batch(self, size: int) -> Batch:
        """Images (size, 3, pixels, pixels) float32, the rest int64: questions and their mask (size, q_len), and
        texts (size, 3, a_len) with -100 where they are padded."""
        import torch

        from shoestring.recipes.vqa.student import SIZES

        pixels = SIZES[self.options.size].pixels
        questions = torch.ones(size, self.options.q_len, dtype=torch.int64)
        mask = questions.clone()
        # Questions differ in length, and without any padding attention would take a path that no real batch takes.
        mask[0, -1] = 0
        texts = torch.ones(size, len(TARGETS), self.options.a_len, dtype=torch.int64)
        return torch.zeros(size, 3, pixels, pixels), questions, mask, texts

    def loss(self, model: Student, batch: Batch) -> Tensor:
        """The weighted sum over the three texts; of each the mean over samples of the mean over a sample's tokens.

        Every sample weighs the same, so that an update does not depend on how it is split.
        """
        import torch

        images, questions, mask, texts = batch
        context = model.encode(images, questions, mask) if self.options.forwards == "shared" else None
        losses = []
        for place, weight in enumerate(TARGETS.values()):
            seen = model.encode(images, questions, mask) if context is None else context
            losses.append(weight * model.cross_entropy(seen, texts[:, place]).mean())
        return torch.stack(losses).sum()

    def optimizer(self, model: nn.Module) -> Optimizer:
        import torch

        return torch.optim.AdamW(model.parameters(), lr=self.options.learning_rate, weight_decay=WEIGHT_DECAY)
