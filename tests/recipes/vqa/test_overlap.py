import unicodedata

import pytest

from shoestring_recipes.vqa.overlap import rouge_l, token_f1, words


def test_vietnamese_words_keep_their_letters() -> None:
    assert words("Số BẢY, ở (đó)!") == ["số", "bảy", "ở", "đó"]
    assert words(unicodedata.normalize("NFD", "Số bảy")) == ["số", "bảy"]


@pytest.mark.parametrize(
    ("prediction", "reference", "f1", "rouge"),
    [
        ("số bảy", "số bảy", 1.0, 1.0),
        ("số bảy", "số tám", 1 / 2, 1 / 2),
        ("bảy số", "số bảy", 1.0, 1 / 2),  # ROUGE-L depends on the order
        ("một một một", "một hai", 2 / 5, 2 / 5),  # a repeated word matches once
        ("a b c d", "a x c", 4 / 7, 4 / 7),  # precision 2/4, recall 2/3
        ("c b a x", "a b c", 6 / 7, 2 / 7),
        ("", "số", 0.0, 0.0),
        ("", "", 1.0, 1.0),
    ],
)
def test_scores_match_manual_calculation(prediction: str, reference: str, f1: float, rouge: float) -> None:
    assert token_f1(words(prediction), words(reference)) == pytest.approx(f1)
    assert rouge_l(words(prediction), words(reference)) == pytest.approx(rouge)
    assert rouge_l(words(reference), words(prediction)) == pytest.approx(rouge)
