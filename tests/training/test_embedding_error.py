"""A batch with an index that an embedding does not have: the error names the sample, the value and the rows."""

import pytest
import torch
from torch import nn

import shoestring
from shoestring.base.errors import RunError
from shoestring.base.failures import describe
from tests.mine import Mine


class Tokens(Mine):
    """Token ids, of which sample 7 has one beyond the vocabulary."""

    epochs = 1

    def model(self):
        return nn.Sequential(nn.Embedding(10, 3), nn.Flatten(), nn.Linear(12, 1))

    def batch(self, size):
        return torch.zeros(size, 4, dtype=torch.int64)

    def data(self):
        tokens = torch.zeros(12, 4, dtype=torch.int64)
        tokens[7, 2] = 10
        return tokens

    def predict(self, model, batch):
        return model(batch)[:, 0]


def test_training_names_the_sample(tmp_path):
    with pytest.raises(RunError) as error:
        shoestring.train(Tokens(), run=tmp_path / "run", on="cpu", probe=False)
    assert error.value.message.partition(": ")[2] == "the index 10 is outside of an embedding with 10 rows"
    assert error.value.problems[0] == "sample 7 of the training data has it"
    assert error.value.problems[1].startswith("in its batch the index is at [") and "in loss" in error.value.problems[2]
    assert error.value.hint.startswith("the indices are 0 to 9: ")


def test_any_other_code_names_the_value():
    with pytest.raises(IndexError) as error:
        nn.Embedding(4, 2)(torch.tensor([[1, 3], [-1, 0]]))
    assert describe(error.value).message == "the index -1 is outside of an embedding with 4 rows"
    with pytest.raises(IndexError) as error:
        [1][2]
    assert describe(error.value).message == "IndexError: list index out of range"


def test_an_assertion_on_a_gpu_says_how_to_find_it():
    error = RuntimeError("CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert'")
    assert describe(error).hint.endswith("the same command with --on cpu names it")
