import pytest

from shoestring_recipes.vqa.bleu import bleu


@pytest.mark.parametrize(
    ("predictions", "references", "expected"),
    [
        (
            ["số bảy", "vì số tám chia cho ba dư hai", "trong ảnh là số chín một số lẻ"],
            ["số bảy", "vì số sáu chia cho ba dư không", "trong ảnh là số chín một số lẻ"],
            73.02967433402218,
        ),
        (
            ["con mèo ngồi trên ghế xanh", "hai người đang đi"],
            ["con mèo đen ngồi trên chiếc ghế xanh", "có hai người đang đi bộ ngoài đường"],
            27.440581804701317,  # with brevity penalty and smoothing
        ),
        (["một hai ba bốn năm"], ["sáu hai bảy ba chín"], 12.703318703865365),
        (["số bảy", "không"], ["số tám", "không"], 0.0),
    ],
)
def test_score_matches_sacrebleu(predictions: list[str], references: list[str], expected: float) -> None:
    """The expected values are sacrebleu 2.6.0's `corpus_bleu(predictions, [references], tokenize="none")`."""
    pairs = [(text.split(), reference.split()) for text, reference in zip(predictions, references, strict=True)]
    assert bleu(pairs) == pytest.approx(expected, rel=1e-12)


def test_equal_texts_score_100_and_empty_ones_0() -> None:
    words = ["a", "b", "c", "d", "e"]
    assert bleu([(words, words)]) == pytest.approx(100)
    assert bleu([([], words)]) == 0
    assert bleu([]) == 0
