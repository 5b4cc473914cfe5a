import pytest

from shoestring.recipes.vqa.metrics import scores
from shoestring.recipes.vqa.samples import Sample
from shoestring.recipes.vqa.texts import targets


def sample(answer: str, kind: str = "OBJECT") -> Sample:
    return Sample(image="", group="", question="?", answer=answer, reasoning="Vì là thế đó.", kind=kind, weight=1.0)


def test_by_hand() -> None:
    samples = [sample("số bảy"), sample("số bảy"), sample("màu đỏ", "CAUSAL"), sample("số tám")]
    written = [
        targets("Số BẢY", "Vì là thế đó.", "CAUSAL")[0],  # right, whatever its case and its kind
        "<answer>số tám</answer>\n<reasoning>[OBJECT] Vì khác.",  # half right, not well formed
        "số đỏ",  # no answer at all
        targets("số tám", "Không.", "OBJECT")[0],
    ]
    found = scores(written, samples)
    assert found["exact_match"] == 2 / 4
    assert found["token_f1"] == (1 + 1 / 2 + 0 + 1) / 4
    assert found["rouge_l"] == (1 + 1 / 2 + 0 + 1) / 4
    assert found["well_formed"] == 2 / 4
    assert found["most_frequent_answer"] == "số bảy"
    assert found["majority_exact_match"] == 2 / 4
    assert found["majority_token_f1"] == (1 + 1 + 0 + 1 / 2) / 4
    assert found["reasoning_rouge_l"] == pytest.approx(1 / 4)
    assert found["kinds"] == {
        "CAUSAL": {"samples": 1, "exact_match": 0.0},
        "OBJECT": {"samples": 3, "exact_match": 2 / 3},
    }


def test_what_is_all_right_has_every_score_at_its_best() -> None:
    samples = [sample("một con mèo đen"), sample("hai người đang đi")]
    found = scores([targets(one.answer, one.reasoning, one.kind)[0] for one in samples], samples)
    assert {name: found[name] for name in ("exact_match", "token_f1", "rouge_l", "well_formed")} == dict.fromkeys(
        ("exact_match", "token_f1", "rouge_l", "well_formed"), 1.0
    )
    assert found["bleu"] == pytest.approx(100) and found["cider"] == pytest.approx(10)
