"""What can be estimated only is said before anything runs."""

import subprocess
import sys
from typing import Any

import pytest
import torch

from shoestring.errors import UsageError
from shoestring.recipe import extras
from shoestring.recipe.options import Adaptation
from shoestring.settings import Settings
from shoestring.techniques.eightbit import BlockwiseAdamW, require_real
from shoestring.techniques.trainable import require_trainable


def test_every_setting_that_the_engine_cannot_run_is_named() -> None:
    require_trainable(Settings(checkpointing="full", optimizer_kernel="fused", offload="parameters", compile="yes"))
    with pytest.raises(UsageError, match="not trained yet") as refused:
        require_trainable(Settings(sharding="zero2"))
    assert [problem.partition(":")[0] for problem in refused.value.problems] == ["sharding=zero2"]


@pytest.mark.parametrize("chosen", [{"quantization": "nf4", "lora_r": 2}, {"optimizer_states": "8bit"}], ids=str)
def test_what_bitsandbytes_does_needs_its_extra(monkeypatch: pytest.MonkeyPatch, chosen: dict[str, Any]) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    require_trainable(Settings(), Adaptation())
    with pytest.raises(UsageError, match="not installed: bitsandbytes"):
        require_trainable(Settings(), Adaptation(**chosen))
    monkeypatch.setattr(extras, "find_spec", lambda name: object())
    require_trainable(Settings(), Adaptation(**chosen))


def test_an_optimizer_that_only_shows_memory_is_refused() -> None:
    weights = [torch.nn.Parameter(torch.ones(2))]
    require_real(torch.optim.AdamW(weights))
    with pytest.raises(UsageError, match="estimated, not trained"):
        require_real(BlockwiseAdamW(weights))


def test_asking_needs_no_torch() -> None:
    script = "import sys, shoestring.techniques.trainable; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
