import pytest
import torch

from shoestring.errors import QuestionError
from shoestring.train.padding import pad_batch


def test_a_batch_is_as_long_as_its_longest_rounded_up():
    padded = pad_batch([torch.tensor([1, 2, 3]), torch.tensor([4])], -100, multiple=4)
    assert padded.tolist() == [[1, 2, 3, -100], [4, -100, -100, -100]] and padded.dtype == torch.int64
    assert pad_batch([torch.ones(9)], 0).shape == (1, 16)
    assert pad_batch([torch.ones(8)], 0).shape == (1, 8)
    assert pad_batch([torch.ones(5)], 0, multiple=1).shape == (1, 5)


@pytest.mark.parametrize(
    ("sequences", "seen"),
    [
        ([], "nothing"),
        ([torch.zeros(2, 2)], r"\(2, 2\) torch.float32"),
        ([torch.zeros(2), torch.zeros(2, dtype=torch.int64)], "torch.float32, torch.int64"),
    ],
)
def test_anything_else_is_refused(sequences, seen):
    with pytest.raises(QuestionError, match=f"cannot pad {seen}"):
        pad_batch(sequences, 0)
