import pytest
import torch

from shoestring.base.errors import UsageError
from shoestring.training.data.padding import pad_batch


def test_length_is_the_longest_rounded_up():
    padded = pad_batch([torch.tensor([1, 2, 3]), torch.tensor([4])], -100, multiple=4)
    assert padded.tolist() == [[1, 2, 3, -100], [4, -100, -100, -100]] and padded.dtype == torch.int64
    assert pad_batch([torch.ones(9)], 0).shape == (1, 16)
    assert pad_batch([torch.ones(8)], 0).shape == (1, 8)
    assert pad_batch([torch.ones(5)], 0, multiple=1).shape == (1, 5)
    assert pad_batch([[1, 2], [3]], 0, multiple=1).tolist() == [[1, 2], [3, 0]]


def test_fields_have_padding_values_of_their_own():
    samples = [{"ids": [1, 2], "labels": [3], "class": 5}, {"ids": [6], "labels": [7, 8], "class": 9}]
    batch = pad_batch(samples, {"ids": 0, "labels": -100}, multiple=1)
    assert {name: field.tolist() for name, field in batch.items()} == {
        "ids": [[1, 2], [6, 0]],
        "labels": [[3, -100], [7, 8]],
        "class": [5, 9],
    }
    frames, classes = pad_batch([(torch.ones(1, 3), 0), (torch.ones(2, 3), 1)], (0, None), multiple=1)
    assert frames.sum(dim=(1, 2)).tolist() == [3, 6] and frames.shape == (2, 2, 3) and classes.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("sequences", "value", "message"),
    [
        ([], 0, "an empty list of samples"),
        ([], {"ids": 0}, "ids"),
        ([{"ids": [1]}], {"ids": 0, "lables": -100}, "lables: the samples have no such field"),
        ([torch.tensor(1)], 0, r"\(\) torch.int64"),
        ([torch.zeros(2, 2), torch.zeros(2, 3)], 0, r"\(2, 2\) torch.float32, \(2, 3\) torch.float32"),
        ([torch.zeros(2), torch.zeros(2, dtype=torch.int64)], 0, r"\(2,\) torch.float32, \(2,\) torch.int64"),
    ],
)
def test_invalid_samples_are_rejected(sequences, value, message):
    with pytest.raises(UsageError, match=f"cannot pad {message}"):
        pad_batch(sequences, value)
