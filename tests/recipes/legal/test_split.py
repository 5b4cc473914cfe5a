import pytest

from shoestring.errors import DataError
from shoestring.recipes.legal.documents import Document
from shoestring.recipes.legal.split import divided


def documents(count: int) -> list[Document]:
    return [Document(sentences=(str(number),), roles=(0,)) for number in range(count)]


def names(part: list[Document]) -> list[str]:
    return [one.sentences[0] for one in part]


def test_every_judgment_is_in_one_part() -> None:
    parts = divided({"all": documents(40)}, None)
    assert {name: len(part) for name, part in parts.items()} == {"train": 32, "validation": 4, "test": 4}
    assert sorted(int(name) for part in parts.values() for name in names(part)) == list(range(40))


def test_the_parts_are_the_same_each_time_and_not_in_the_files_order() -> None:
    first, again = (names(divided({"all": documents(40)}, None)["test"]) for _ in range(2))
    assert first == again
    assert first != [str(number) for number in range(36, 40)]


def test_folds_test_every_judgment_once() -> None:
    folds = [divided({"all": documents(41)}, f"{k}/5") for k in range(1, 6)]
    assert sorted(int(name) for fold in folds for name in names(fold["test"])) == list(range(41))
    for fold in folds:
        assert sum(map(len, fold.values())) == 41
        assert len(fold["validation"]) == 3


def test_the_files_own_parts_are_kept() -> None:
    train, test = documents(20), documents(3)
    parts = divided({"train": train, "test": test}, None)
    assert parts["test"] == test
    assert parts["train"] + parts["validation"] == train and len(parts["validation"]) == 2
    with pytest.raises(DataError, match="train, validation and test already"):
        divided({"train": train, "test": test}, "1/5")


def test_nothing_need_be_held_out() -> None:
    """For weights that are to be evaluated on other data than they were trained on."""
    assert divided({"all": documents(1)}, "all") == {"train": documents(1)}
    assert divided({"train": documents(2), "test": documents(1)}, "all") == {"train": documents(2) + documents(1)}


@pytest.mark.parametrize(("count", "fold"), [(2, None), (0, None), (3, "1/4"), (9, "1/1")])
def test_too_few_judgments_are_refused(count: int, fold: str | None) -> None:
    with pytest.raises(DataError):
        divided({"all": documents(count)}, fold)
