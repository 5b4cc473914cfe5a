"""Samples as tensors: an image, its question, and the three texts to learn."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from shoestring.data.padding import pad_batch
from shoestring.recipes.vqa.images import pixels
from shoestring.recipes.vqa.samples import Sample
from shoestring.recipes.vqa.student import IGNORED, Batch
from shoestring.recipes.vqa.texts import targets
from shoestring.recipes.vqa.tokens import Tokens


class Encoded(NamedTuple):
    """Tokens of a question and of the three texts."""

    question: list[int]
    texts: tuple[list[int], list[int], list[int]]
    cut: bool
    """Whether one of them was longer than it may be."""


class Dataset:
    """Samples in their order; of each (image (3, side, side) float32, question, whole, answer, reasoning, weight,
    sample)."""

    def __init__(
        self,
        samples: Sequence[Sample],
        encoded: Sequence[Encoded],
        picture: Callable[[Sample], Image.Image],
        *,
        side: int,
        mean_weight: float,
    ) -> None:
        self._samples, self._encoded, self._picture = samples, encoded, picture
        self._side, self._mean_weight = side, mean_weight

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[object, ...]:
        sample, encoded = self._samples[index], self._encoded[index]
        image = pixels(self._picture(sample), self._side)
        return image, encoded.question, *encoded.texts, sample.weight / self._mean_weight, sample

    def length(self, index: int) -> int:
        """Tokens of the whole text."""
        return len(self._encoded[index].texts[0])

    def kind(self, index: int) -> str:
        """Of the reasoning."""
        return self._samples[index].kind


def encode(sample: Sample, questions: Tokens, texts: Tokens, *, q_len: int, a_len: int) -> Encoded:
    """The tokens of a sample, as many as there may be."""
    question = [questions.begin, *questions.encode(sample.question), questions.end]
    whole, answer, reasoning = map(texts.encode, targets(sample.answer, sample.reasoning, sample.kind))
    # The answer alone does not end: after it the whole text goes on, and both are written from the same beginning.
    full = ([*whole, texts.end], answer, [*reasoning, texts.end])
    kept = full[0][:a_len], full[1][:a_len], full[2][:a_len]
    return Encoded(question[:q_len], kept, len(question) > q_len or len(full[0]) > a_len)


def collate(samples: Sequence[tuple[object, ...]], *, padding: int) -> Batch:
    """A batch, each of its texts padded to its own longest; what pads questions is masked."""
    *tensors, told = zip(*samples, strict=True)
    fields = list(zip(*tensors, strict=True))
    images, asked, whole, answer, reasoning, weights = pad_batch(
        fields, (None, padding, IGNORED, IGNORED, IGNORED, None)
    )
    mask = _mask([len(question) for question in tensors[1]], asked.shape[1])
    return Batch(images, asked, mask, whole, answer, reasoning, weights.float(), list(told))


def mean_weight(samples: Iterable[Sample]) -> float:
    """Of the reasonings of the training data: by it all are divided, so that a stage's shares hold on average."""
    weights = [sample.weight for sample in samples]
    return sum(weights) / len(weights)


def _mask(lengths: Sequence[int], longest: int) -> Tensor:
    """(n, longest) int64: 1 where a question is."""
    return (torch.arange(longest) < torch.tensor(lengths)[:, None]).long()
