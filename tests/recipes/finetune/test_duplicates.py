import random

import pytest

from shoestring_recipes.finetune.duplicates import THRESHOLD, WORDS, count_near_duplicates


def sequences(text: str) -> set[tuple[str, ...]]:
    words = text.casefold().split()
    return {tuple(words[start : start + WORDS]) for start in range(max(1, len(words) - WORDS + 1))}


def is_similar(one: str, other: str) -> bool:
    first, second = sequences(one), sequences(other)
    return len(first & second) / len(first | second) >= THRESHOLD


@pytest.mark.parametrize("vocabulary", [3, 30, 3000])
def test_the_count_is_that_of_a_comparison_of_all_pairs(vocabulary: int) -> None:
    chosen = random.Random(vocabulary)
    base = [" ".join(f"w{chosen.randrange(vocabulary)}" for _ in range(chosen.randrange(1, 60))) for _ in range(30)]
    texts = []
    for text in base * 4:
        words = text.split()
        for _ in range(chosen.randrange(4)):
            words[chosen.randrange(len(words))] = "changed"
        texts.append(" ".join(words[chosen.randrange(4) :] or words))
    expected = sum(any(is_similar(text, other) for other in base) for text in texts)
    assert 10 < expected < 120
    assert count_near_duplicates(texts, base) == expected


def test_texts_that_begin_alike_are_told_apart() -> None:
    beginning = " ".join(f"w{number}" for number in range(100))
    ends = [" ".join(f"{name}{number}" for number in range(40)) for name in "abc"]
    texts = [f"{beginning} {end}" for end in ends]
    assert count_near_duplicates(texts[:1], texts[1:]) == 0
    assert count_near_duplicates(texts, texts[:2]) == 2


def test_a_large_share_of_rare_sequences_is_not_yet_a_near_duplicate() -> None:
    beginning = " ".join(f"w{number}" for number in range(89))
    end, other_end = (" ".join(f"{name}{number}" for number in range(15)) for name in "ab")
    # 85 of 115 sequences are common, and the others are more frequent.
    assert count_near_duplicates([f"{beginning} {end}"], [f"{beginning} {other_end}", f"w88 {end}", f"{end} w"]) == 0


def test_case_and_white_space_do_not_count() -> None:
    assert count_near_duplicates(["What is\n3 + 4?"], ["what IS 3 + 4?"]) == 1
    assert count_near_duplicates(["What is 3 + 4?"], ["What is 3 - 4?"]) == 0


def test_each_character_of_a_language_without_spaces_is_a_word() -> None:
    text = "我们明天早上八点在学校门口见面然后一起坐火车去北京看望我的老朋友"
    assert count_near_duplicates([f"{text}吧。"], [text]) == 1
    assert count_near_duplicates([text[::-1]], [text]) == 0


def test_no_texts() -> None:
    assert count_near_duplicates([], ["a"]) == count_near_duplicates(["a"], []) == count_near_duplicates([], []) == 0
