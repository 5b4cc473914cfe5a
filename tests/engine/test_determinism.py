import pytest
import torch

from shoestring.engine.determinism import deterministic


def flags():
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.backends.cudnn.benchmark,
    )


def test_kernels_are_deterministic_within_and_as_before_afterwards():
    torch.backends.cudnn.benchmark = True
    before = flags()
    with deterministic():
        assert flags() == (True, False, False)
    assert flags() == before
    torch.backends.cudnn.benchmark = False


def test_an_operator_that_has_no_such_kernel_warns_rather_than_fails():
    values = torch.zeros(3)
    with deterministic(), pytest.warns(UserWarning, match="put_ does not have a deterministic implementation"):
        values.put_(torch.tensor([1]), torch.tensor([1.0]))
    assert values.tolist() == [0, 1, 0]
