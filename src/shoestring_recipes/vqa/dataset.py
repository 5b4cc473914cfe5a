"""Samples as tensors: an image, its question, and the three target texts."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from shoestring.training.data.padding import pad_batch
from shoestring_recipes.thumbnails import encode_thumbnail
from shoestring_recipes.vqa.images import to_tensor
from shoestring_recipes.vqa.samples import Sample
from shoestring_recipes.vqa.student import IGNORED, Batch
from shoestring_recipes.vqa.texts import build_targets
from shoestring_recipes.vqa.tokens import Tokenizer


class EncodedSample(NamedTuple):
    """Tokens of a question and of the three target texts."""

    question: list[int]
    texts: tuple[list[int], list[int], list[int]]
    is_truncated: bool
    """Whether the question or a text exceeded its maximum length."""


class Dataset:
    """A map-style dataset of (image (3, side, side) float32, question, whole, answer, reasoning, weight, sample)."""

    def __init__(
        self,
        samples: Sequence[Sample],
        encoded: Sequence[EncodedSample],
        load_image: Callable[[Sample], Image.Image],
        *,
        side: int,
        mean_weight: float,
    ) -> None:
        self._samples, self._encoded, self._load_image = samples, encoded, load_image
        self._side, self._mean_weight = side, mean_weight

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[object, ...]:
        sample, encoded = self._samples[index], self._encoded[index]
        image = to_tensor(self._load_image(sample), self._side)
        return image, encoded.question, *encoded.texts, sample.weight / self._mean_weight, sample

    def length(self, index: int) -> int:
        """Return the number of tokens of the whole text."""
        return len(self._encoded[index].texts[0])

    def identify(self, index: int) -> str | int:
        """Return the identifier of a sample."""
        identifier = self._samples[index].id
        return index if identifier is None else identifier

    def describe(self, index: int) -> dict[str, str]:
        """Return the image, the question and the answer of a sample."""
        sample = self._samples[index]
        return {"image": sample.image, "question": sample.question, "answer": sample.answer}

    def thumbnail(self, index: int) -> bytes:
        """Return the image of a sample as a small JPEG."""
        return encode_thumbnail(self._load_image(self._samples[index]))

    def kind(self, index: int) -> str:
        """Return the kind of the reasoning."""
        return self._samples[index].kind


def encode(
    sample: Sample, question_tokenizer: Tokenizer, text_tokenizer: Tokenizer, *, q_len: int, a_len: int
) -> EncodedSample:
    """Return the tokens of a sample, truncated to the maximum lengths."""
    question = encode_question(sample.question, question_tokenizer)
    targets = build_targets(sample.answer, sample.reasoning, sample.kind)
    whole, answer, reasoning = map(text_tokenizer.encode, targets)
    # The answer has no end token, because it is the beginning of the whole text, which continues after it.
    whole, reasoning = [*whole, text_tokenizer.end], [*reasoning, text_tokenizer.end]
    is_truncated = len(question) > q_len or len(whole) > a_len
    return EncodedSample(question[:q_len], (whole[:a_len], answer[:a_len], reasoning[:a_len]), is_truncated)


def encode_question(question: str, tokenizer: Tokenizer) -> list[int]:
    """Return the tokens of a question with those of its begin and end."""
    return [tokenizer.begin, *tokenizer.encode(question), tokenizer.end]


def collate(samples: Sequence[tuple[object, ...]], *, padding: int) -> Batch:
    """Return a batch in which each field is padded to its longest entry, with a mask of the questions' padding."""
    *tensors, originals = zip(*samples, strict=True)
    fields = list(zip(*tensors, strict=True))
    images, questions, whole, answer, reasoning, weights = pad_batch(
        fields, (None, padding, IGNORED, IGNORED, IGNORED, None)
    )
    mask = _mask([len(question) for question in tensors[1]], questions.shape[1])
    return Batch(images, questions, mask, whole, answer, reasoning, weights.float(), list(originals))


def mean_weight(samples: Iterable[Sample]) -> float:
    """Return the mean weight of the training samples, which divides all weights so that their mean is 1."""
    weights = [sample.weight for sample in samples]
    return sum(weights) / len(weights)


def _mask(lengths: Sequence[int], longest: int) -> Tensor:
    """Return a mask (n, longest) int64: 1 for the tokens of a question, 0 for padding."""
    return (torch.arange(longest) < torch.tensor(lengths)[:, None]).long()
