import subprocess
import sys

from shoestring_recipes.legal.tokens import HashedWords, encode_sentences

SENTENCE = "The appeal, No. 123 of 1953, is dismissed."


def test_word_ids_are_the_same_in_every_process() -> None:
    script = (
        "from shoestring_recipes.legal.tokens import HashedWords; "
        f"print(list(HashedWords(4096).encode([{SENTENCE!r}])))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == str(list(HashedWords(4096).encode([SENTENCE])))


def test_tokens_ignore_case_and_digits() -> None:
    first, equal, different = HashedWords(4096).encode(["Of 1953.", "of 1954.", "in 1953."])
    assert first == equal != different
    assert len(first) == 3


def test_word_ids_cover_the_vocabulary_without_special_ids() -> None:
    (tokens,) = HashedWords(10).encode([" ".join(map(chr, range(97, 123)))])
    assert set(tokens) == set(range(3, 10))


def test_a_sentence_has_at_least_one_token() -> None:
    encoded = encode_sentences(HashedWords(4096), ["a b c", " ", "d"])
    assert [encoded.length(index) for index in range(3)] == [3, 1, 1]
    assert encoded[1].tolist() == [HashedWords.separator]
    assert encoded[2].tolist() == next(iter(HashedWords(4096).encode(["d"])))
