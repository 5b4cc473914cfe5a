"""These tests have a fake library in place of the simulator, so PyTorch must have no CUDA: `make test` runs them."""

import pytest
import torch


@pytest.fixture(autouse=True)
def without_cuda() -> None:
    if torch.version.cuda:
        pytest.skip("a build with CUDA refuses what is observed here, since there is no driver")
