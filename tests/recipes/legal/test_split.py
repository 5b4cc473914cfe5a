import pytest

from shoestring.base.errors import DataError
from shoestring_recipes.legal.documents import Document
from shoestring_recipes.legal.split import split_documents


def build_documents(count: int) -> list[Document]:
    return [Document(sentences=(str(number),), roles=(0,)) for number in range(count)]


def names(part: list[Document]) -> list[str]:
    return [document.sentences[0] for document in part]


def test_every_judgment_is_in_one_part() -> None:
    parts = split_documents({"all": build_documents(40)}, None)
    assert {name: len(part) for name, part in parts.items()} == {"train": 32, "validation": 4, "test": 4}
    assert sorted(int(name) for part in parts.values() for name in names(part)) == list(range(40))


def test_the_parts_are_shuffled_deterministically() -> None:
    first, second = (names(split_documents({"all": build_documents(40)}, None)["test"]) for _ in range(2))
    assert first == second
    assert first != [str(number) for number in range(36, 40)]


def test_folds_test_every_judgment_once() -> None:
    folds = [split_documents({"all": build_documents(41)}, f"{k}/5") for k in range(1, 6)]
    assert sorted(int(name) for fold in folds for name in names(fold["test"])) == list(range(41))
    for fold in folds:
        assert sum(map(len, fold.values())) == 41
        assert len(fold["validation"]) == 3


def test_parts_of_the_files_are_unchanged() -> None:
    train, test = build_documents(20), build_documents(3)
    parts = split_documents({"train": train, "test": test}, None)
    assert parts["test"] == test
    assert parts["train"] + parts["validation"] == train and len(parts["validation"]) == 2
    with pytest.raises(DataError, match="already define train, validation and test"):
        split_documents({"train": train, "test": test}, "1/5")


def test_fold_all_holds_nothing_out() -> None:
    """This is for weights that are evaluated on another data set."""
    assert split_documents({"all": build_documents(1)}, "all") == {"train": build_documents(1)}
    assert split_documents({"train": build_documents(2), "test": build_documents(1)}, "all") == {
        "train": build_documents(2) + build_documents(1)
    }


@pytest.mark.parametrize(("count", "fold"), [(2, None), (0, None), (3, "1/4"), (9, "1/1")])
def test_too_few_judgments_are_refused(count: int, fold: str | None) -> None:
    with pytest.raises(DataError):
        split_documents({"all": build_documents(count)}, fold)
