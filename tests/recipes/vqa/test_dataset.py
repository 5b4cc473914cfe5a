from pathlib import Path

import pytest
import torch

from shoestring_recipes.vqa import VQA, Options, tokens
from shoestring_recipes.vqa.dataset import encode
from shoestring_recipes.vqa.samples import Sample
from shoestring_recipes.vqa.student import IGNORED
from tests.recipes.vqa.teacher_data import make_row, write_data

SAMPLE = Sample(
    image="", group="", question="Số mấy?", answer="số bảy", reasoning="Vì là số bảy.", kind="CAUSAL", weight=5.0
)


def test_the_three_texts_of_a_sample() -> None:
    question_tokenizer, text_tokenizer = tokens.build_question_tokenizer(), tokens.build_text_tokenizer()
    encoded = encode(SAMPLE, question_tokenizer, text_tokenizer, q_len=30, a_len=40)
    whole, answer, reasoning = map(text_tokenizer.decode, encoded.texts)
    assert whole == f"{answer}\n{reasoning}" == "<answer>số bảy</answer>\n<reasoning>[CAUSAL] Vì là số bảy.</reasoning>"
    # The answer has no end token, because the whole text, which begins with it, continues there.
    assert [text[-1] == text_tokenizer.end for text in encoded.texts] == [True, False, True]
    assert question_tokenizer.decode(encoded.question) == "Số mấy?" and not encoded.is_truncated


@pytest.mark.parametrize("a_len", [40, 8, 2])
def test_truncated_whole_text_begins_with_the_answer(a_len: int) -> None:
    """The loss of the answer is computed from the first tokens of the whole text, which therefore must be equal."""
    tokenizers = tokens.build_question_tokenizer(), tokens.build_text_tokenizer()
    whole, answer, _ = encode(SAMPLE, *tokenizers, q_len=30, a_len=a_len).texts
    assert 0 < len(answer) <= len(whole) and whole[: len(answer)] == answer


def test_long_texts_are_truncated_and_noted(tmp_path: Path) -> None:
    tokenizers = tokens.build_question_tokenizer(), tokens.build_text_tokenizer()
    encoded = encode(SAMPLE, *tokenizers, q_len=30, a_len=8)
    assert encoded.is_truncated and max(map(len, encoded.texts)) == 8 and tokenizers[1].end not in encoded.texts[0]
    assert encode(SAMPLE, *tokenizers, q_len=2, a_len=40).is_truncated
    recipe = VQA(Options(size="tiny", data=write_data(tmp_path, [make_row(number) for number in range(5)]), a_len=8))
    recipe.data()
    assert recipe.notes() == ["5 of 5 samples are truncated, because they are longer than q_len=32 or a_len=8"]


def test_a_batch_is_padded_to_its_longest_texts(tmp_path: Path) -> None:
    rows = [make_row(0), make_row(1, question="Màu?", teacher_reasoning="Đó."), make_row(2, reasoning_weight=1.0)]
    recipe = VQA(Options(size="tiny", split="no", data=write_data(tmp_path, rows)))
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


def test_no_batch_exceeds_the_planned_batch() -> None:
    recipe = VQA(Options(size="tiny"))
    train, planned_batch = recipe.data()["train"], recipe.batch(64)
    real_batch = recipe.collate([train[index] for index in range(64)])
    for name in ("images", "questions", "mask", "whole", "answer", "reasoning", "weights"):
        real, planned = getattr(real_batch, name), getattr(planned_batch, name)
        assert real.dtype == planned.dtype and all(a <= b for a, b in zip(real.shape, planned.shape, strict=True)), name


def test_default_data_are_not_truncated() -> None:
    recipe = VQA(Options(size="tiny"))
    assert {name: len(part) for name, part in recipe.data().items()} == {"train": 1437, "validation": 180, "test": 180}
    assert len(recipe.notes()) == 1 and "synthetic questions over real digits" in recipe.notes()[0]
