"""Made-up judgments: sentences from patterns, in the order in which a judgment has its parts.

Nothing of them is real. A fifth of the sentences could stand in any part and have the role of the one before them, so
that who reads the context knows more than who does not.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from shoestring.recipes.legal.documents import Document
from shoestring.recipes.legal.roles import SETS, numbers

NOTE = (
    "the data are synthetic: {judgments} judgments made up from patterns, nothing of them is real; --set data=PATH "
    "reads yours, sentence<TAB>role on each line"
)

# Of each role its sentences in a judgment, at least and at most, in their order, and the patterns.
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

_ANYWHERE = (
    "This was so in {year} as well .",
    "The same holds of the {thing} at {place} .",
    "Much was said about the {person} in this regard .",
    "Nothing more needs to be said of it .",
)
_SHARE_ANYWHERE = 0.2

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


def judgments(count: int = 80, *, seed: int = 0) -> list[Document]:
    """`count` judgments with the roles of LegalSeg; the same ones for the same seed."""
    # The stream of RandomState never changes; that of newer generators may from one NumPy to the next.
    draw = np.random.RandomState(seed)
    return [_judgment(draw) for _ in range(count)]


def _judgment(draw: np.random.RandomState) -> Document:
    known = numbers(SETS["legalseg"])
    sentences, roles = [], []
    for role, (least, most), patterns in _PARTS:
        for place in range(draw.randint(least, most + 1)):
            anywhere = place > 0 and draw.random_sample() < _SHARE_ANYWHERE
            sentences.append(_filled(_one(draw, _ANYWHERE if anywhere else patterns), partial(_word, draw)))
            roles.append(known[role.casefold()])
    return Document(sentences=tuple(sentences), roles=tuple(roles))


def _filled(pattern: str, word: Callable[[str], str]) -> str:
    return " ".join(word(part[1:-1]) if part.startswith("{") else part for part in pattern.split())


def _word(draw: np.random.RandomState, kind: str) -> str:
    return _one(draw, _WORDS[kind])


def _one(draw: np.random.RandomState, choices: tuple[str, ...]) -> str:
    return choices[draw.randint(len(choices))]
