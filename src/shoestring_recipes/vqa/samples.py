"""Samples, each a question about an image with its answer and reasoning, and their split into parts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from shoestring.base.errors import DataError

HELD_OUT = 0.1
"""The share of the images for validation, and the same share for testing."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A sample, whose texts have each letter as one code point (`texts.normalize`)."""

    image: str
    """The key of its image: a path, or the number of a digit."""
    group: str
    """The name of the image. All samples of an image are in the same part of the data."""
    question: str
    answer: str
    reasoning: str
    kind: str
    weight: float
    """Weight of its reasoning in the loss, relative to the other samples."""
    id: str | int | None = field(default=None, compare=False)
    """The row's own identifier, else its position from 0 in the file; None for default data."""


def split(samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    """Split the samples by image: 80% of the images train, 10% validate, 10% test.

    The split depends on a hash of the image's name, so it is the same on every machine, and samples of one image are
    always in the same part. Raises DataError for fewer than three images.
    """
    groups = sorted({sample.group for sample in samples}, key=lambda name: sha256(name.encode()).digest())
    if len(groups) < 3:
        raise DataError(
            f"the data have {len(groups)} images; a split into train, validation and test needs at least 3",
            hint="set split=no to train on all of them",
        )
    held_out = max(1, round(HELD_OUT * len(groups)))
    part = dict.fromkeys(groups[:held_out], "validation")
    part |= dict.fromkeys(groups[held_out : 2 * held_out], "test")
    parts: dict[str, list[Sample]] = {"train": [], "validation": [], "test": []}
    for sample in samples:
        parts[part.get(sample.group, "train")].append(sample)
    return parts
