from pathlib import Path

import pytest
import torch

from shoestring.base.errors import DataError, UsageError
from shoestring_recipes.legal import Legal, Options
from shoestring_recipes.legal.vectors import vector_problem


def build_recipe(data: Path, width: int = 3, sentences: int = 512) -> Legal:
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


def test_a_sample_has_the_vectors_of_its_sentences(data: Path) -> None:
    recipe = build_recipe(data)
    train = recipe.data()["train"]
    vectors, roles = train[0]
    assert vectors.tolist() == [[1, 2, 3], [4, -0.5, 6], [7, 8, 9]]
    assert roles.tolist() == [1, 2, 0]
    assert [recipe.length(train, index) for index in range(2)] == [3, 1]
    assert len(build_recipe(data, sentences=2).data()["train"]) == 3


def test_gradients_and_independence_of_padding(data: Path) -> None:
    recipe = build_recipe(data)
    model, train = recipe.model(), recipe.data()["train"]
    batch = recipe.collate([train[0], train[1]])
    total, weight = recipe.loss(model, batch)
    assert weight == 4
    total.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.eval()
    torch.testing.assert_close(model(batch)[1, :1], model(recipe.collate([train[1]]))[0])
    assert recipe.batch(2).keys() == batch.keys()


def test_rows_that_are_not_vectors_are_reported(data: Path) -> None:
    with pytest.raises(DataError) as error:
        build_recipe(data, width=4).data()
    assert len(error.value.problems) == 4
    assert error.value.problems[0].endswith("line 1: has 3 numbers, not 4")
    assert "could not convert" in str(vector_problem("1 b 3", 3))
    assert vector_problem("1 nan 3", 3) == "has a number that is not finite"
    assert vector_problem("1 2 3", 3) is None


def test_vectors_need_data_and_the_hierarchical_network(data: Path) -> None:
    with pytest.raises(UsageError, match="set data"):
        Options(architecture="hier_bilstm_crf", vectors=3)
    with pytest.raises(UsageError, match="takes words"):
        Options(data=data, vectors=3)
