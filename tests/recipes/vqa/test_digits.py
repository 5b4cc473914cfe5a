from collections import Counter

import pytest

from shoestring.recipes.vqa import digits
from shoestring.recipes.vqa.texts import KINDS, parsed, targets


def test_every_digit_is_asked_about_in_every_way() -> None:
    found = digits.samples()
    assert len(found) == 1797
    seen = Counter((sample.kind, sample.reasoning) for sample in found)
    assert len(seen) == 5 * 10 and min(seen.values()) > 15
    for sample in found[:200]:
        written = parsed(targets(sample.answer, sample.reasoning, sample.kind)[0])
        assert (written.answer, written.reasoning, written.well_formed) == (sample.answer, sample.reasoning, True)
        assert sample.weight == KINDS[sample.kind]


@pytest.mark.parametrize(
    ("kind", "digit", "answer", "reasoning"),
    [
        ("OBJECT", 7, "số bảy", "Nét vẽ trong ảnh có hình của số bảy."),
        ("DESCRIPTIVE", 0, "số chẵn", "Trong ảnh là số không, một số chẵn."),
        ("CAUSAL", 9, "có", "Vì số chín chia cho ba dư không."),
        ("CAUSAL", 8, "không", "Vì số tám chia cho ba dư hai."),
        ("COMMONSENSE", 5, "không phải", "Trong ảnh là số năm, không lớn hơn năm."),
        ("COUNTING", 9, "số mười", "Sau số chín là số mười."),
    ],
)
def test_the_answers_are_right(kind: str, digit: int, answer: str, reasoning: str) -> None:
    assert digits.asked(kind, digit)[1:] == (answer, reasoning)


def test_the_picture_is_the_digit() -> None:
    sample = digits.samples()[0]
    picture = digits.picture(sample)
    assert picture.size == (8, 8) and picture.mode == "L"
    assert picture.getpixel((0, 0)) == 0 and max(picture.get_flattened_data()) > 200
    assert "không" in digits.asked("OBJECT", 0)[1], "the first of them is a nought"


def test_it_is_called_synthetic() -> None:
    assert "synthetic questions over real digits" in digits.NOTE
