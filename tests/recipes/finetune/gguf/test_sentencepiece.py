"""Scores that make llama.cpp merge as tokenizer.json does."""

import json
from itertools import pairwise

from tokenizers import normalizers, pre_tokenizers

from shoestring_recipes.finetune.gguf import sentencepiece, vocabulary
from tests.recipes.finetune.exported_models import sentencepiece_tokenizer


def merge_by_scores(text: str, scores: dict[str, float]) -> list[str]:
    """Return the tokens of a text as llama.cpp finds them: the neighbours with the highest score first."""
    tokens = list(text)
    while True:
        pairs = [(scores.get(left + right), -index) for index, (left, right) in enumerate(pairwise(tokens))]
        known = [pair for pair in pairs if pair[0] is not None]
        if not known:
            return tokens
        index = -max(known)[1]
        tokens[index : index + 2] = [tokens[index] + tokens[index + 1]]


def test_scores_merge_as_the_merges_do():
    tokenizer = sentencepiece_tokenizer()
    found = vocabulary.read_vocabulary(tokenizer, rows=400, stops=[])
    assert (found.model, found.pre, found.adds_bos, found.adds_space) == ("llama", "default", True, True)
    scores = {
        token: score
        for token, score, kind in zip(found.tokens, found.scores, found.types, strict=True)
        if kind == vocabulary.NORMAL
    }
    for text in ("the cat sat on the mat", "then athen ththen", "satt csatt", "o the then"):
        expected = tokenizer.convert_ids_to_tokens(tokenizer(text, add_special_tokens=False)["input_ids"])
        assert merge_by_scores("▁" + text.replace(" ", "▁"), scores) == expected, text


def test_types():
    found = vocabulary.read_vocabulary(sentencepiece_tokenizer(), rows=400, stops=[])
    kinds = dict(zip(found.tokens, found.types, strict=True))
    assert (kinds["<unk>"], kinds["<s>"]) == (vocabulary.UNKNOWN, vocabulary.CONTROL)
    assert (kinds["<0x0A>"], kinds["▁the"], kinds["[PAD399]"]) == (
        vocabulary.BYTE,
        vocabulary.NORMAL,
        vocabulary.UNUSED,
    )


def problems(tokenizer) -> list[str]:
    return sentencepiece.problems(json.loads(tokenizer.backend_tokenizer.to_str()))


def test_both_ways_to_mark_spaces_are_known():
    tokenizer = sentencepiece_tokenizer()
    assert problems(tokenizer) == []
    backend = tokenizer.backend_tokenizer
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    assert problems(tokenizer) == []
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="never", split=False)
    assert "the begin of a text" in problems(tokenizer)[0]
    backend.pre_tokenizer, backend.normalizer = None, normalizers.NFKC()
    assert "the begin of a text" in problems(tokenizer)[0]


def test_merges_in_another_order_are_refused():
    description = json.loads(sentencepiece_tokenizer().backend_tokenizer.to_str())
    merges = description["model"]["merges"]
    merges.append(merges.pop(next(index for index, pair in enumerate(merges) if "".join(pair) == "sat")))
    assert sentencepiece.problems(description) == ["its merges do not complete one token after the other"]
