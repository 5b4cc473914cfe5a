from collections.abc import Iterable, Sequence

import pytest

from shoestring.recipes.legal.documents import Document
from shoestring.recipes.legal.sentences import CONTEXTS, Sentences


class Letters:
    """A token for each letter, so that one reads what is in a sample."""

    first, separator = ord("<"), ord("|")

    def encode(self, sentences: Sequence[str]) -> Iterable[list[int]]:
        return ([ord(letter) for letter in one] for one in sentences)


DOCUMENTS = (
    Document(sentences=("abc", "defg", "hi"), roles=(1, 2, 3)),
    Document(sentences=("jk", "lmn"), roles=(4, 5)),
)


def texts(context: str, longest: int = 512) -> list[str]:
    samples = Sentences(DOCUMENTS, Letters(), context, longest)
    return ["".join(map(chr, samples[index][0])) for index in range(len(samples))]


def test_a_sentence_is_joined_with_those_of_its_judgment() -> None:
    assert texts("single") == ["<abc|", "<defg|", "<hi|", "<jk|", "<lmn|"]
    assert texts("previous") == ["<|abc|", "<abc|defg|", "<defg|hi|", "<|jk|", "<jk|lmn|"]
    assert texts("two_previous") == ["<||abc|", "<|abc|defg|", "<abc|defg|hi|", "<||jk|", "<|jk|lmn|"]
    assert texts("surrounding") == ["<|abc|defg|", "<abc|defg|hi|", "<defg|hi||", "<|jk|lmn|", "<jk|lmn||"]


def test_the_context_is_cut_before_the_sentence_and_far_from_it_first() -> None:
    assert texts("previous", 8)[1:3] == ["<c|defg|", "<efg|hi|"]
    assert texts("two_previous", 9)[2] == "<|efg|hi|"
    assert texts("surrounding", 10)[1] == "<bc|defg||"
    assert texts("surrounding", 8)[0] == "<|abc|d|"
    assert texts("single", 4)[1] == "<de|"


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("longest", [8, 10, 512])
def test_the_length_is_known_without_reading(context: str, longest: int) -> None:
    samples = Sentences(DOCUMENTS, Letters(), context, longest)
    for index in range(len(samples)):
        tokens, mask, role = samples[index]
        assert samples.length(index) == len(tokens) == len(mask) == mask.sum() <= longest
        assert role == samples.roles[index] == index + 1
