import math

import pytest

from shoestring_recipes.vqa.cider import cider

PREDICTIONS = ["con mèo đen ngồi trên ghế xanh", "hai người đang đi bộ", "một quả táo đỏ đỏ đỏ trên bàn gỗ"]
REFERENCES = ["con mèo đen ngồi trên chiếc ghế xanh", "có hai người đang đi bộ ngoài đường", "quả táo đỏ trên bàn gỗ"]


def split_pairs(predictions: list[str], references: list[str]) -> list[tuple[list[str], list[str]]]:
    return [(text.split(), reference.split()) for text, reference in zip(predictions, references, strict=True)]


def test_score_matches_the_coco_evaluation() -> None:
    """The expected value is that of coco-caption's cider_scorer.py with n=4 and sigma=6."""
    assert cider(split_pairs(PREDICTIONS, REFERENCES)) == pytest.approx(5.889859245701433, rel=1e-12)


def test_score_matches_manual_calculation() -> None:
    # "a" is in both references (weight 0), "b" and "c" in one each (weight ln 2).
    # "a b": words (0, ln 2) and one word pair: both cosines are 1; there are no 3-grams and 4-grams.
    assert cider(split_pairs(["a b", "x y"], ["a b", "a c"])) == pytest.approx((10 * (1 + 1) / 4 + 0) / 2)
    # One correct word of two: the cosine is 1 for words only, and there is one word pair less.
    assert cider(split_pairs(["b", "x y"], ["a b", "a c"])) == pytest.approx(10 * math.exp(-1 / 72) / 4 / 2)


def test_equal_references_score_zero() -> None:
    assert cider(split_pairs(["a b", "a b"], ["a b", "a b"])) == 0
    assert cider([]) == 0
