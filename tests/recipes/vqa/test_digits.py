from collections import Counter

import pytest

from shoestring_recipes.vqa import digits
from shoestring_recipes.vqa.texts import KINDS, build_targets, parse


def test_every_digit_has_questions_of_every_kind() -> None:
    samples = digits.make_samples()
    assert len(samples) == 1797
    counts = Counter((sample.kind, sample.reasoning) for sample in samples)
    assert len(counts) == 5 * 10 and min(counts.values()) > 15
    for sample in samples[:200]:
        parsed = parse(build_targets(sample.answer, sample.reasoning, sample.kind)[0])
        assert (parsed.answer, parsed.reasoning, parsed.well_formed) == (sample.answer, sample.reasoning, True)
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
def test_answers_are_correct(kind: str, digit: int, answer: str, reasoning: str) -> None:
    assert digits.make_question(kind, digit)[1:] == (answer, reasoning)


def test_image_shows_the_digit() -> None:
    sample = digits.make_samples()[0]
    image = digits.load_image(sample)
    assert image.size == (8, 8) and image.mode == "L"
    assert image.getpixel((0, 0)) == 0 and max(image.tobytes()) > 200
    assert "không" in digits.make_question("OBJECT", 0)[1], "the first digit is a zero"


def test_note_calls_the_data_synthetic() -> None:
    assert "synthetic questions over real digits" in digits.NOTE
