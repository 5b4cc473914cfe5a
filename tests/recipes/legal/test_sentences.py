from collections.abc import Iterable, Sequence

import pytest

from shoestring_recipes.legal.documents import Document
from shoestring_recipes.legal.sentences import CONTEXTS, Sentences


class LetterTokenizer:
    """A tokenizer with one token per letter, so that samples are readable."""

    first, separator = ord("<"), ord("|")

    def encode(self, sentences: Sequence[str]) -> Iterable[list[int]]:
        return ([ord(letter) for letter in sentence] for sentence in sentences)


DOCUMENTS = (
    Document(sentences=("abc", "defg", "hi"), roles=(1, 2, 3)),
    Document(sentences=("jk", "lmn"), roles=(4, 5)),
)


def sample_texts(context: str, max_tokens: int = 512) -> list[str]:
    samples = Sentences(DOCUMENTS, LetterTokenizer(), context, max_tokens)
    return ["".join(map(chr, samples[index][0])) for index in range(len(samples))]


def test_context_comes_from_the_same_judgment() -> None:
    assert sample_texts("single") == ["<abc|", "<defg|", "<hi|", "<jk|", "<lmn|"]
    assert sample_texts("previous") == ["<|abc|", "<abc|defg|", "<defg|hi|", "<|jk|", "<jk|lmn|"]
    assert sample_texts("two_previous") == ["<||abc|", "<|abc|defg|", "<abc|defg|hi|", "<||jk|", "<|jk|lmn|"]
    assert sample_texts("surrounding") == ["<|abc|defg|", "<abc|defg|hi|", "<defg|hi||", "<|jk|lmn|", "<jk|lmn||"]


def test_context_is_truncated_farthest_tokens_first() -> None:
    assert sample_texts("previous", 8)[1:3] == ["<c|defg|", "<efg|hi|"]
    assert sample_texts("two_previous", 9)[2] == "<|efg|hi|"
    assert sample_texts("surrounding", 10)[1] == "<bc|defg||"
    assert sample_texts("surrounding", 8)[0] == "<|abc|d|"
    assert sample_texts("single", 4)[1] == "<de|"


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("max_tokens", [8, 10, 512])
def test_length_equals_the_tokens_of_a_sample(context: str, max_tokens: int) -> None:
    samples = Sentences(DOCUMENTS, LetterTokenizer(), context, max_tokens)
    for index in range(len(samples)):
        tokens, mask, role = samples[index]
        assert samples.length(index) == len(tokens) == len(mask) == mask.sum() <= max_tokens
        assert role == samples.roles[index] == index + 1
