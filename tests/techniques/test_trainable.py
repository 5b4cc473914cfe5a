"""What can be estimated only is said before anything runs."""

import subprocess
import sys

import pytest
import torch

from shoestring.errors import QuestionError
from shoestring.settings import Settings
from shoestring.techniques.eightbit import BlockwiseAdamW, require_real
from shoestring.techniques.trainable import require_trainable


def test_every_setting_that_the_engine_cannot_run_is_named() -> None:
    require_trainable(Settings(checkpointing="full", optimizer_kernel="fused", offload="parameters"))
    with pytest.raises(QuestionError, match="not trained yet") as refused:
        require_trainable(Settings(sharding="zero2"))
    assert [problem.partition(":")[0] for problem in refused.value.problems] == ["sharding=zero2"]


def test_an_optimizer_that_only_shows_memory_is_refused() -> None:
    weights = [torch.nn.Parameter(torch.ones(2))]
    require_real(torch.optim.AdamW(weights))
    with pytest.raises(QuestionError, match="estimated, not trained"):
        require_real(BlockwiseAdamW(weights))


def test_asking_needs_no_torch() -> None:
    script = "import sys, shoestring.techniques.trainable; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
