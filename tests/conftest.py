import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """A sum over threads rounds by their number; with one, sessions in other processes are comparable."""
    torch.set_num_threads(1)
