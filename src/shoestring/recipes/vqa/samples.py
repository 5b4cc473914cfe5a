"""One question about one image, as it is learnt from, and which part of the data it belongs to."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from shoestring.errors import DataError

HELD_OUT = 0.1
"""The share of the images that validates; as many test."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Texts have each letter as one code point (`texts.normal`)."""

    image: str
    """What its image is found by."""
    group: str
    """The image's own name. Samples of one image are all in one part of the data."""
    question: str
    answer: str
    reasoning: str
    kind: str
    weight: float
    """Of its reasoning in the loss, beside the other samples'."""


def split(samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    """80% of the images train, 10% validate, 10% test, by a hash of their names: the same on every machine, and an
    image that is asked about twice is never on both sides.

    Raises DataError for fewer than three images.
    """
    groups = sorted({sample.group for sample in samples}, key=lambda name: sha256(name.encode()).digest())
    if len(groups) < 3:
        raise DataError(
            f"the data have {len(groups)} images; to train, validate and test takes 3",
            hint="split=no takes them as one part",
        )
    held_out = max(1, round(HELD_OUT * len(groups)))
    part = dict.fromkeys(groups[:held_out], "validation")
    part |= dict.fromkeys(groups[held_out : 2 * held_out], "test")
    parts: dict[str, list[Sample]] = {"train": [], "validation": [], "test": []}
    for sample in samples:
        parts[part.get(sample.group, "train")].append(sample)
    return parts
