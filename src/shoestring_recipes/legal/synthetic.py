"""Synthetic judgments: sentences generated from patterns, in the usual order of the parts of a judgment.

A fifth of the sentences are neutral: they fit any part and have the role of the sentence before, so a model with
context can do better than one without.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from shoestring_recipes.legal.documents import Document
from shoestring_recipes.legal.roles import SETS, class_numbers

NOTE = (
    "the data are synthetic: {judgments} judgments generated from patterns; --set data=PATH reads real ones, with "
    "sentence<TAB>role on each line"
)

# The parts of a judgment in order: role, smallest and largest number of sentences, and patterns.
_PARTS: tuple[tuple[str, tuple[int, int], tuple[str, ...]], ...] = (
    ("None", (1, 3), (
        "In the High Court of {place} .", "Appeal No. {number} of {year} .", "Before the bench at {place} :"
    )),
    ("Facts", (4, 8), (
        "On {day} {month} {year} the {person} bought the {thing} at {place} .",
        "The {person} lived at {place} and worked for a {trade} .",
        "A complaint was lodged by the {person} at {place} police station .",
        "The {thing} was found damaged in {month} {year} .",
    )),
    ("Issue", (1, 2), (
        "The question is whether the {person} is liable for the {thing} .",
        "Whether section {number} applies falls to be decided .",
    )),
    ("Arguments of Petitioner", (2, 4), (
        "Learned counsel for the petitioner submits that the {thing} was sound .",
        "It is urged for the petitioner that section {number} does not apply .",
    )),
    ("Arguments of Respondent", (2, 4), (
        "Learned counsel for the respondent submits that the {thing} was unsound .",
        "The respondent contends that section {number} does apply .",
    )),
    ("Reasoning", (4, 9), (
        "We are of the view that section {number} must be read with care .",
        "In our opinion the evidence of the {person} inspires confidence .",
        "It is settled law that a {trade} owes a duty of care .",
        "Having regard to these principles we find the reasoning below sound .",
    )),
    ("Decision", (1, 2), ("The appeal is dismissed with costs .", "For these reasons the appeal is allowed .")),
    ("None", (0, 2), ("Order accordingly .", "Certified copy to the parties .")),
)  # fmt: skip

_NEUTRAL_PATTERNS = (
    "This was so in {year} as well .",
    "The same holds of the {thing} at {place} .",
    "Much was said about the {person} in this regard .",
    "Nothing more needs to be said of it .",
)
_NEUTRAL_SHARE = 0.2

_WORDS = {
    "place": ("Madras", "Delhi", "Bombay", "Calcutta", "Patna", "Lucknow"),
    "person": ("appellant", "plaintiff", "widow", "tenant", "driver", "officer"),
    "thing": ("house", "lorry", "contract", "land", "machine", "shop"),
    "trade": ("builder", "carrier", "broker", "banker"),
    "month": ("January", "March", "June", "August", "November"),
    "day": tuple(map(str, range(1, 29))),
    "number": tuple(map(str, range(2, 499))),
    "year": tuple(map(str, range(1951, 2020))),
}


def generate_judgments(count: int = 80, *, seed: int = 0) -> list[Document]:
    """Return `count` judgments with the roles of LegalSeg; the same seed gives the same judgments."""
    # The stream of RandomState is frozen; that of newer generators may change between NumPy versions.
    random = np.random.RandomState(seed)
    return [_generate_judgment(random) for _ in range(count)]


def _generate_judgment(random: np.random.RandomState) -> Document:
    class_by_role = class_numbers(SETS["legalseg"])
    sentences, roles = [], []
    for role, (min_count, max_count), patterns in _PARTS:
        for place in range(random.randint(min_count, max_count + 1)):
            neutral = place > 0 and random.random_sample() < _NEUTRAL_SHARE
            sentences.append(
                _fill(_choose(random, _NEUTRAL_PATTERNS if neutral else patterns), partial(_choose_word, random))
            )
            roles.append(class_by_role[role.casefold()])
    return Document(sentences=tuple(sentences), roles=tuple(roles))


def _fill(pattern: str, choose_word: Callable[[str], str]) -> str:
    return " ".join(choose_word(part[1:-1]) if part.startswith("{") else part for part in pattern.split())


def _choose_word(random: np.random.RandomState, kind: str) -> str:
    return _choose(random, _WORDS[kind])


def _choose(random: np.random.RandomState, choices: tuple[str, ...]) -> str:
    return choices[random.randint(len(choices))]
