import math

import pytest

from shoestring.recipes.vqa.cider import cider

FOUND = ["con mèo đen ngồi trên ghế xanh", "hai người đang đi bộ", "một quả táo đỏ đỏ đỏ trên bàn gỗ"]
WANTED = ["con mèo đen ngồi trên chiếc ghế xanh", "có hai người đang đi bộ ngoài đường", "quả táo đỏ trên bàn gỗ"]


def pairs(found: list[str], wanted: list[str]) -> list[tuple[list[str], list[str]]]:
    return [(one.split(), other.split()) for one, other in zip(found, wanted, strict=True)]


def test_it_is_that_of_the_coco_evaluation() -> None:
    """The value of cider_scorer.py of coco-caption, n=4 and sigma=6."""
    assert cider(pairs(FOUND, WANTED)) == pytest.approx(5.889859245701433, rel=1e-12)


def test_by_hand() -> None:
    # Of two texts, "a" is in both (worth nothing), "b" and "c" in one each (worth ln 2).
    # a b: words (0, ln 2), one pair of words: both cosines are 1, threes and fours are not there.
    assert cider(pairs(["a b", "x y"], ["a b", "a c"])) == pytest.approx((10 * (1 + 1) / 4 + 0) / 2)
    # One word for two, the right one: cosine 1 of words alone, and a pair of words less.
    assert cider(pairs(["b", "x y"], ["a b", "a c"])) == pytest.approx(10 * math.exp(-1 / 72) / 4 / 2)


def test_where_nothing_is_rare_it_is_nothing() -> None:
    assert cider(pairs(["a b", "a b"], ["a b", "a b"])) == 0
    assert cider([]) == 0
