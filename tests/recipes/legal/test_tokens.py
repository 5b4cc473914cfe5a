import subprocess
import sys

from shoestring.recipes.legal.tokens import HashedWords, encoded

SENTENCE = "The appeal, No. 123 of 1953, is dismissed."


def test_a_words_number_is_the_same_in_every_process() -> None:
    script = (
        "from shoestring.recipes.legal.tokens import HashedWords; "
        f"print(list(HashedWords(4096).encode([{SENTENCE!r}])))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == str(list(HashedWords(4096).encode([SENTENCE])))


def test_case_and_digits_do_not_matter_and_words_do() -> None:
    one, same, other = HashedWords(4096).encode(["Of 1953.", "of 1954.", "in 1953."])
    assert one == same != other
    assert len(one) == 3


def test_no_word_has_a_special_number_or_one_beyond_the_vocabulary() -> None:
    (found,) = HashedWords(10).encode([" ".join(map(chr, range(97, 123)))])
    assert set(found) == set(range(3, 10))


def test_a_sentence_has_at_least_one_token() -> None:
    found = encoded(HashedWords(4096), ["a b c", " ", "d"])
    assert [found.length(index) for index in range(3)] == [3, 1, 1]
    assert found[1].tolist() == [HashedWords.separator]
    assert found[2].tolist() == next(iter(HashedWords(4096).encode(["d"])))
