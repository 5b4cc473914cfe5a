"""The default data: scikit-learn's 1,797 real handwritten digits, and synthetic questions about them.

Questions, answers and reasonings are generated from templates, so they are exact; no teacher model is involved.
Image data: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits (1998), UCI, CC BY 4.0.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any
from zlib import crc32

from PIL import Image

from shoestring_recipes.vqa.samples import Sample
from shoestring_recipes.vqa.texts import KINDS

NOTE = (
    "the data are synthetic questions over real digits: 1,797 handwritten digits of scikit-learn, with questions, "
    "answers and reasonings from templates; use --set data=PATH for the texts of a teacher"
)

NAMES = ("không", "một", "hai", "ba", "bốn", "năm", "sáu", "bảy", "tám", "chín", "mười")


def make_question(kind: str, digit: int) -> tuple[str, str, str]:
    """Return a question of a kind about an image of `digit`, its answer and its reasoning."""
    name, successor, remainder = NAMES[digit], NAMES[digit + 1], NAMES[digit % 3]
    parity, larger = ("lẻ" if digit % 2 else "chẵn"), digit > 5
    return {
        "OBJECT": ("Chữ số trong ảnh là số mấy?", f"số {name}", f"Nét vẽ trong ảnh có hình của số {name}."),
        "DESCRIPTIVE": (
            "Số trong ảnh là số chẵn hay số lẻ?", f"số {parity}", f"Trong ảnh là số {name}, một số {parity}."
        ),
        "CAUSAL": (
            "Số trong ảnh có chia hết cho ba không, vì sao?",
            "không" if digit % 3 else "có",
            f"Vì số {name} chia cho ba dư {remainder}.",
        ),
        "COMMONSENSE": (
            "Số trong ảnh lớn hơn năm phải không?",
            "phải" if larger else "không phải",
            f"Trong ảnh là số {name}, {'lớn' if larger else 'không lớn'} hơn năm.",
        ),
        "COUNTING": (
            "Đếm tiếp thì sau số trong ảnh là số mấy?", f"số {successor}", f"Sau số {name} là số {successor}."
        ),
    }[kind]  # fmt: skip


QUESTION_KINDS = ("OBJECT", "DESCRIPTIVE", "CAUSAL", "COMMONSENSE", "COUNTING")


def make_samples() -> list[Sample]:
    """Return one question about each image, of a kind that does not depend on its digit."""
    samples = []
    for number, digit in enumerate(_load_digits().target.tolist()):
        kind = QUESTION_KINDS[crc32(str(number).encode()) % len(QUESTION_KINDS)]
        question, answer, reasoning = make_question(kind, digit)
        samples.append(
            Sample(
                image=str(number),
                group=str(number),
                question=question,
                answer=answer,
                reasoning=reasoning,
                kind=kind,
                weight=KINDS[kind],
                id=number,
            )
        )
    return samples


def load_image(sample: Sample) -> Image.Image:
    """Return the image of a sample, 8x8 pixels in 17 shades of gray."""
    shades = _load_digits().images[int(sample.image)]
    return Image.fromarray((shades * (255 / 16)).round().astype("uint8"))


def template_texts() -> Iterator[str]:
    """Yield every question, answer and reasoning that the templates can generate."""
    for kind in QUESTION_KINDS:
        for digit in range(10):
            yield from make_question(kind, digit)


@lru_cache(maxsize=1)
def _load_digits() -> Any:
    from sklearn.datasets import load_digits

    return load_digits()
