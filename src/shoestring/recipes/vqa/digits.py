"""The default data: scikit-learn's 1,797 real handwritten digits, and synthetic questions about them.

Question, answer and reasoning come from templates, so they are exact; nobody asked them, and no teacher wrote them.
Image data: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits (1998), UCI, CC BY 4.0.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any
from zlib import crc32

from PIL import Image

from shoestring.recipes.vqa.samples import Sample
from shoestring.recipes.vqa.texts import KINDS

NOTE = (
    "the data are synthetic questions over real digits: 1,797 handwritten digits that scikit-learn brings along, with "
    "questions, answers and reasonings from templates; --set data=PATH takes a teacher's texts"
)

NAMES = ("không", "một", "hai", "ba", "bốn", "năm", "sáu", "bảy", "tám", "chín", "mười")


def asked(kind: str, digit: int) -> tuple[str, str, str]:
    """Question, answer and reasoning of a kind about an image of `digit`."""
    name, after, rest = NAMES[digit], NAMES[digit + 1], NAMES[digit % 3]
    parity, larger = ("lẻ" if digit % 2 else "chẵn"), digit > 5
    return {
        "OBJECT": ("Chữ số trong ảnh là số mấy?", f"số {name}", f"Nét vẽ trong ảnh có hình của số {name}."),
        "DESCRIPTIVE": (
            "Số trong ảnh là số chẵn hay số lẻ?", f"số {parity}", f"Trong ảnh là số {name}, một số {parity}."
        ),
        "CAUSAL": (
            "Số trong ảnh có chia hết cho ba không, vì sao?",
            "không" if digit % 3 else "có",
            f"Vì số {name} chia cho ba dư {rest}.",
        ),
        "COMMONSENSE": (
            "Số trong ảnh lớn hơn năm phải không?",
            "phải" if larger else "không phải",
            f"Trong ảnh là số {name}, {'lớn' if larger else 'không lớn'} hơn năm.",
        ),
        "COUNTING": ("Đếm tiếp thì sau số trong ảnh là số mấy?", f"số {after}", f"Sau số {name} là số {after}."),
    }[kind]  # fmt: skip


ASKED = ("OBJECT", "DESCRIPTIVE", "CAUSAL", "COMMONSENSE", "COUNTING")


def samples() -> list[Sample]:
    """One question about each image, of a kind that has nothing to do with its digit."""
    found = []
    for number, digit in enumerate(_digits().target.tolist()):
        kind = ASKED[crc32(str(number).encode()) % len(ASKED)]
        question, answer, reasoning = asked(kind, digit)
        found.append(
            Sample(
                image=str(number),
                group=str(number),
                question=question,
                answer=answer,
                reasoning=reasoning,
                kind=kind,
                weight=KINDS[kind],
            )
        )
    return found


def picture(sample: Sample) -> Image.Image:
    """The image of a sample, 8x8 in 17 shades of grey."""
    shades = _digits().images[int(sample.image)]
    return Image.fromarray((shades * (255 / 16)).round().astype("uint8"))


def words() -> Iterator[str]:
    """Every text there may be."""
    for kind in ASKED:
        for digit in range(10):
            yield from asked(kind, digit)


@lru_cache(maxsize=1)
def _digits() -> Any:
    from sklearn.datasets import load_digits

    return load_digits()
