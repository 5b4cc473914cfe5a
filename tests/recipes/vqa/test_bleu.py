import pytest

from shoestring.recipes.vqa.bleu import bleu


@pytest.mark.parametrize(
    ("found", "wanted", "expected"),
    [
        (
            ["số bảy", "vì số tám chia cho ba dư hai", "trong ảnh là số chín một số lẻ"],
            ["số bảy", "vì số sáu chia cho ba dư không", "trong ảnh là số chín một số lẻ"],
            73.02967433402218,
        ),
        (
            ["con mèo ngồi trên ghế xanh", "hai người đang đi"],
            ["con mèo đen ngồi trên chiếc ghế xanh", "có hai người đang đi bộ ngoài đường"],
            27.440581804701317,  # with the penalty for being short, and smoothed
        ),
        (["một hai ba bốn năm"], ["sáu hai bảy ba chín"], 12.703318703865365),
        (["số bảy", "không"], ["số tám", "không"], 0.0),
    ],
)
def test_it_is_that_of_sacrebleu(found: list[str], wanted: list[str], expected: float) -> None:
    """Values of sacrebleu 2.6.0, `corpus_bleu(found, [wanted], tokenize="none")`."""
    pairs = [(one.split(), other.split()) for one, other in zip(found, wanted, strict=True)]
    assert bleu(pairs) == pytest.approx(expected, rel=1e-12)


def test_the_same_is_100_and_nothing_is_0() -> None:
    same = ["a", "b", "c", "d", "e"]
    assert bleu([(same, same)]) == pytest.approx(100)
    assert bleu([([], same)]) == 0
    assert bleu([]) == 0
