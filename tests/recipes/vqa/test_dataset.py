from pathlib import Path

import pytest
import torch

from shoestring.recipes.vqa import VQA, Options, tokens
from shoestring.recipes.vqa.dataset import encode
from shoestring.recipes.vqa.samples import Sample
from shoestring.recipes.vqa.student import IGNORED
from tests.recipes.vqa.taught import row, written

SAMPLE = Sample(
    image="", group="", question="Số mấy?", answer="số bảy", reasoning="Vì là số bảy.", kind="CAUSAL", weight=5.0
)


def test_the_three_texts_of_a_sample() -> None:
    texts = tokens.texts()
    found = encode(SAMPLE, tokens.questions(), texts, q_len=30, a_len=40)
    whole, answer, reasoning = map(texts.decode, found.texts)
    assert whole == f"{answer}\n{reasoning}" == "<answer>số bảy</answer>\n<reasoning>[CAUSAL] Vì là số bảy.</reasoning>"
    # From one beginning the answer alone may not end where the whole goes on.
    assert [text[-1] == texts.end for text in found.texts] == [True, False, True]
    assert tokens.questions().decode(found.question) == "Số mấy?" and not found.cut


@pytest.mark.parametrize("a_len", [40, 8, 2])
def test_the_whole_begins_with_the_answer_however_it_is_cut(a_len: int) -> None:
    """The loss of the answer is that of the whole's first tokens: nothing else makes them the same."""
    whole, answer, _ = encode(SAMPLE, tokens.questions(), tokens.texts(), q_len=30, a_len=a_len).texts
    assert 0 < len(answer) <= len(whole) and whole[: len(answer)] == answer


def test_what_is_too_long_is_cut_and_said(tmp_path: Path) -> None:
    found = encode(SAMPLE, tokens.questions(), tokens.texts(), q_len=30, a_len=8)
    assert found.cut and max(map(len, found.texts)) == 8 and tokens.texts().end not in found.texts[0]
    assert encode(SAMPLE, tokens.questions(), tokens.texts(), q_len=2, a_len=40).cut
    recipe = VQA(Options(size="tiny", data=written(tmp_path, [row(number) for number in range(5)]), a_len=8))
    recipe.data()
    assert recipe.notes() == ["5 of 5 texts are longer than q_len=32 or a_len=8, and cut"]


def test_a_batch_is_padded_to_its_own_longest(tmp_path: Path) -> None:
    rows = [row(0), row(1, question="Màu?", teacher_reasoning="Đó."), row(2, reasoning_weight=1.0)]
    recipe = VQA(Options(size="tiny", split="no", data=written(tmp_path, rows)))
    train = recipe.data()["train"]
    batch = recipe.collate([train[0], train[1], train[2]])
    lengths = (batch.mask == 1).sum(dim=1)
    assert batch.questions.shape == batch.mask.shape and batch.questions.shape[1] % 8 == 0
    assert ((batch.questions == 1) == (batch.mask == 0)).all() and lengths[1] < lengths[0]
    for text in (batch.whole, batch.answer, batch.reasoning):
        assert text.shape[1] % 8 == 0
        assert text.shape[1] - 8 < (text != IGNORED).sum(dim=1).max() <= text.shape[1]
    assert batch.answer.shape[1] < batch.whole.shape[1]
    torch.testing.assert_close(batch.weights, torch.tensor([4.0, 4.0, 1.0]) / 3)
    assert [sample.answer for sample in batch.samples] == ["màu đỏ", "màu xanh", "màu vàng"]
    assert recipe.length(train, 0) > recipe.length(train, 1) and recipe.label(train, 0) == "DESCRIPTIVE"


def test_no_batch_is_larger_than_the_planned_one() -> None:
    recipe = VQA(Options(size="tiny"))
    train, planned = recipe.data()["train"], recipe.batch(64)
    real = recipe.collate([train[index] for index in range(64)])
    for name in ("images", "questions", "mask", "whole", "answer", "reasoning", "weights"):
        ours, theirs = getattr(real, name), getattr(planned, name)
        assert ours.dtype == theirs.dtype and all(a <= b for a, b in zip(ours.shape, theirs.shape, strict=True)), name


def test_every_text_of_the_default_data_fits() -> None:
    recipe = VQA(Options(size="tiny"))
    assert {name: len(part) for name, part in recipe.data().items()} == {"train": 1437, "validation": 180, "test": 180}
    assert len(recipe.notes()) == 1 and "synthetic questions over real digits" in recipe.notes()[0]
