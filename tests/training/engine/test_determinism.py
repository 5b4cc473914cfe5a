import pytest
import torch

from shoestring.training.engine.determinism import deterministic


def flags():
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.backends.cudnn.benchmark,
    )


def test_settings_apply_within_and_are_restored():
    torch.backends.cudnn.benchmark = True
    before = flags()
    with deterministic():
        assert flags() == (True, False, False)
    assert flags() == before
    torch.backends.cudnn.benchmark = False


def test_operator_without_deterministic_kernel_warns():
    values = torch.zeros(3)
    with deterministic(), pytest.warns(UserWarning, match="put_ does not have a deterministic implementation"):
        values.put_(torch.tensor([1]), torch.tensor([1.0]))
    assert values.tolist() == [0, 1, 0]
