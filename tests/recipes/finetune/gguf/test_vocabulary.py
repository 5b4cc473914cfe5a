"""Vocabularies as llama.cpp reads them, and tokenizers that it would not follow."""

import pytest
from tokenizers import AddedToken, normalizers, pre_tokenizers

from shoestring.base.errors import UsageError
from shoestring_recipes.finetune.gguf import vocabulary
from tests.recipes.finetune.exported_models import SPLITS, byte_level_tokenizer, sentencepiece_tokenizer


def read(tokenizer, rows: int = 336, stops: tuple[int, ...] = ()) -> vocabulary.Vocabulary:
    return vocabulary.read_vocabulary(tokenizer, rows=rows, stops=list(stops))


@pytest.mark.parametrize("split", SPLITS)
def test_splits_are_recognized_by_their_rules(split):
    assert read(byte_level_tokenizer(split)).pre == split


def test_llama_3_with_merges_inside_words_has_a_name_of_its_own():
    tokenizer = byte_level_tokenizer("llama-bpe")
    tokenizer.backend_tokenizer.model.ignore_merges = False
    assert read(tokenizer).pre == "smaug-bpe"


def test_types_of_tokens():
    tokenizer = byte_level_tokenizer()
    tokenizer.add_tokens(["<|special by its looks|>"])
    found = read(tokenizer)
    kinds = dict(zip(found.tokens, found.types, strict=True))
    expected = {
        "<|im_start|>": vocabulary.CONTROL,
        "<think>": vocabulary.USER_DEFINED,
        "<|special by its looks|>": vocabulary.CONTROL,
        "a": vocabulary.NORMAL,
        "[PAD335]": vocabulary.UNUSED,
    }
    assert {token: kinds[token] for token in expected} == expected
    assert found.merges and all(len(merge.split(" ")) == 2 for merge in found.merges)


def test_begin_is_added_as_the_tokenizer_does():
    assert read(byte_level_tokenizer("llama-bpe", bos=True)).adds_bos
    assert not read(byte_level_tokenizer("llama-bpe")).adds_bos


def test_stop_token_of_turns_is_the_first_other_one():
    assert read(byte_level_tokenizer(), stops=(2, 1, 0)).ids["eot"] == 1
    assert "eot" not in read(byte_level_tokenizer(), stops=(2,)).ids


def test_normalization_to_nfc_is_noted():
    tokenizer = byte_level_tokenizer("qwen2")
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    assert "NFC" in read(tokenizer).notes[0]


def with_part(name: str, value) -> object:
    tokenizer = byte_level_tokenizer()
    setattr(tokenizer.backend_tokenizer, name, value)
    return tokenizer


def with_token(**properties) -> object:
    tokenizer = byte_level_tokenizer()
    tokenizer.add_tokens([AddedToken("<wide>", **properties)])
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "problem"),
    [
        (with_part("normalizer", normalizers.Lowercase()), "its normalizer is Lowercase"),
        (with_part("pre_tokenizer", pre_tokenizers.Whitespace()), "rules that llama.cpp has no name for"),
        (with_part("pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True)), "rules that llama.cpp"),
        (with_part("pre_tokenizer", pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), SPLITS["gpt-2"]])), "rules"),
        (with_token(rstrip=True), "'<wide>' takes the spaces"),
        (sentencepiece_tokenizer(complete=False), "it never merges 's' and 'at'"),
    ],
    ids=["normalizer", "split", "prefix", "sequence", "wide token", "sentencepiece"],
)
def test_other_tokenizers_are_refused(tokenizer, problem):
    with pytest.raises(UsageError, match="other tokens of the same text") as raised:
        read(tokenizer)
    assert problem in "\n".join(raised.value.problems)


def test_more_tokens_than_the_model_has_are_refused():
    with pytest.raises(UsageError) as raised:
        read(byte_level_tokenizer(), rows=100)
    assert "the model has only 100 tokens" in raised.value.problems[0]


def test_tokenizer_without_tokenizer_json_is_refused():
    with pytest.raises(UsageError, match=r"without tokenizer\.json"):
        read(object())
