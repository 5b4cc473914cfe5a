import pytest

from shoestring_recipes.folds import is_fold
from shoestring_recipes.temporal.split import borders, shares


def test_default_split_is_70_15_15() -> None:
    assert borders(1000, None) == [(0, 700), (700, 850), (850, 1000)]


def test_folds_expand_and_test_every_later_block_once() -> None:
    folds = [borders(700, f"{k}/5") for k in range(1, 6)]
    assert [train for train, _, _ in folds] == [(0, 100), (0, 200), (0, 300), (0, 400), (0, 500)]
    assert [test for _, _, test in folds] == [(200, 300), (300, 400), (400, 500), (500, 600), (600, 700)]
    assert all(train[1] == validation[0] and validation[1] == test[0] for train, validation, test in folds)


@pytest.mark.parametrize("moments", [0, 1, 7, 996, 1013])
@pytest.mark.parametrize("fold", [None, "1/1", "2/3", "7/7"])
def test_parts_are_adjacent(moments: int, fold: str | None) -> None:
    train, validation, test = borders(moments, fold)
    assert 0 == train[0] <= train[1] == validation[0] <= validation[1] == test[0] <= test[1] <= moments
    assert sum(shares(fold)) <= 1 + 1e-9


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3/5", True),
        ("1/1", True),
        ("10/12", True),
        ("0/5", False),
        ("6/5", False),
        ("3", False),
        ("3/5/7", False),
        ("a/b", False),
        ("", False),
        ("-1/5", False),
    ],
)
def test_is_fold(text: str, expected: bool) -> None:
    assert is_fold(text) is expected
