import pytest

from shoestring_recipes.vqa.metrics import compute_scores
from shoestring_recipes.vqa.samples import Sample
from shoestring_recipes.vqa.texts import build_targets


def make_sample(answer: str, kind: str = "OBJECT") -> Sample:
    return Sample(image="", group="", question="?", answer=answer, reasoning="Vì là thế đó.", kind=kind, weight=1.0)


def test_scores_match_manual_calculation() -> None:
    samples = [make_sample("số bảy"), make_sample("số bảy"), make_sample("màu đỏ", "CAUSAL"), make_sample("số tám")]
    texts = [
        build_targets("Số BẢY", "Vì là thế đó.", "CAUSAL")[0],  # correct, despite another case and kind
        "<answer>số tám</answer>\n<reasoning>[OBJECT] Vì khác.",  # half correct, not well formed
        "số đỏ",  # no answer
        build_targets("số tám", "Không.", "OBJECT")[0],
    ]
    scores = compute_scores(texts, samples)
    assert scores["exact_match"] == 2 / 4
    assert scores["token_f1"] == (1 + 1 / 2 + 0 + 1) / 4
    assert scores["rouge_l"] == (1 + 1 / 2 + 0 + 1) / 4
    assert scores["well_formed"] == 2 / 4
    assert scores["most_frequent_answer"] == "số bảy"
    assert scores["majority_exact_match"] == 2 / 4
    assert scores["majority_token_f1"] == (1 + 1 + 0 + 1 / 2) / 4
    assert scores["reasoning_rouge_l"] == pytest.approx(1 / 4)
    assert scores["kinds"] == {
        "CAUSAL": {"samples": 1, "exact_match": 0.0},
        "OBJECT": {"samples": 3, "exact_match": 2 / 3},
    }


def test_correct_texts_have_the_best_scores() -> None:
    samples = [make_sample("một con mèo đen"), make_sample("hai người đang đi")]
    texts = [build_targets(sample.answer, sample.reasoning, sample.kind)[0] for sample in samples]
    scores = compute_scores(texts, samples)
    assert {name: scores[name] for name in ("exact_match", "token_f1", "rouge_l", "well_formed")} == dict.fromkeys(
        ("exact_match", "token_f1", "rouge_l", "well_formed"), 1.0
    )
    assert scores["bleu"] == pytest.approx(100) and scores["cider"] == pytest.approx(10)
