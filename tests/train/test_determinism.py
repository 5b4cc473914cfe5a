import torch

from shoestring.train.determinism import deterministic


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


def test_an_operator_that_has_no_such_kernel_warns_rather_than_fails(recwarn):
    with deterministic():
        assert torch.is_deterministic_algorithms_warn_only_enabled()
