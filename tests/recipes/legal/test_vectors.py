from pathlib import Path

import pytest
import torch

from shoestring.errors import DataError, UsageError
from shoestring.recipes.legal import Legal, Options
from shoestring.recipes.legal.vectors import wrong


def recipe(data: Path, width: int = 3, sentences: int = 512) -> Legal:
    return Legal(
        Options(
            architecture="hier_bilstm_crf", size="tiny", data=data, vectors=width, max_sentences=sentences, fold="all"
        )
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "vectors.txt"
    path.write_text("1 2 3\tFacts\n4 -5e-1 6\tIssue\n7 8 9\tNone\n\n.5 0 0\tDecision\n")
    return path


def test_a_judgment_is_the_numbers_of_its_sentences(data: Path) -> None:
    made = recipe(data)
    found = made.data()["train"]
    numbers, roles = found[0]
    assert numbers.tolist() == [[1, 2, 3], [4, -0.5, 6], [7, 8, 9]]
    assert roles.tolist() == [1, 2, 0]
    assert [made.length(found, index) for index in range(2)] == [3, 1]
    assert len(recipe(data, sentences=2).data()["train"]) == 3


def test_an_update_reaches_every_parameter_and_padding_changes_nothing(data: Path) -> None:
    made = recipe(data)
    model, found = made.model(), made.data()["train"]
    both = made.collate([found[0], found[1]])
    total, weight = made.loss(model, both)
    assert weight == 4
    total.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.eval()
    torch.testing.assert_close(model(both)[1, :1], model(made.collate([found[1]]))[0])
    assert made.batch(2).keys() == both.keys()


def test_rows_that_are_not_so_many_numbers_are_bad(data: Path) -> None:
    with pytest.raises(DataError) as refused:
        recipe(data, width=4).data()
    assert len(refused.value.problems) == 4
    assert refused.value.problems[0].endswith("line 1: has 3 numbers, not 4")
    assert "could not convert" in str(wrong("1 b 3", 3))
    assert wrong("1 nan 3", 3) == "has a number that is not finite"
    assert wrong("1 2 3", 3) is None


def test_they_need_data_and_the_network_that_reads_them(data: Path) -> None:
    with pytest.raises(UsageError, match="set data"):
        Options(architecture="hier_bilstm_crf", vectors=3)
    with pytest.raises(UsageError, match="reads words"):
        Options(data=data, vectors=3)
