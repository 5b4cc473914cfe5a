"""Settings that cannot be trained with are refused before a run starts."""

import subprocess
import sys
from typing import Any

import pytest
import torch

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.recipe.adaptation import Adaptation
from shoestring.techniques.eightbit import BlockwiseAdamW, require_real
from shoestring.techniques.trainable import require_trainable
from tests.libraries import hide


def test_unsupported_settings_are_named() -> None:
    require_trainable(Settings(checkpointing="full", optimizer_kernel="fused", offload="parameters", compile="yes"))
    require_trainable(Settings(sharding="zero2", checkpointing="full", optimizer_kernel="fused", offload="parameters"))
    with pytest.raises(UsageError, match="sharding=zero3 does not support") as caught:
        require_trainable(Settings(sharding="zero3", compile="yes"), Adaptation(quantization="nf4", lora_r=2))
    names = [problem.partition(":")[0] for problem in caught.value.problems]
    assert names == ["compile=yes", "quantization=nf4"]


def test_channels_last_needs_whole_weights_and_own_states() -> None:
    require_trainable(Settings(memory_format="channels_last", sharding="zero1"))
    with pytest.raises(UsageError, match="sharding=zero2 does not support") as caught:
        require_trainable(Settings(memory_format="channels_last", sharding="zero2"))
    assert caught.value.problems == ("memory_format=channels_last: FSDP2 divides contiguous weights alone",)
    with pytest.raises(UsageError, match="memory_format=channels_last does not support") as caught:
        require_trainable(Settings(memory_format="channels_last"), Adaptation(optimizer_states="8bit"))
    assert [problem.partition(":")[0] for problem in caught.value.problems] == ["optimizer_states=8bit"]


def test_adapters_in_bf16_are_not_trained_with_a_loss_scaler() -> None:
    adapters = Adaptation(lora_r=2, lora_dtype="bf16")
    require_trainable(Settings(precision="bf16"), adapters)
    require_trainable(Settings(precision="fp16"), Adaptation(lora_dtype="bf16"))  # there are none
    with pytest.raises(UsageError, match="lora_dtype=bf16 cannot be trained with precision=fp16") as caught:
        require_trainable(Settings(precision="fp16"), adapters)
    assert "lora_dtype=fp32" in (caught.value.hint or "")


@pytest.mark.parametrize("options", [{"quantization": "nf4", "lora_r": 2}, {"optimizer_states": "8bit"}], ids=str)
def test_adaptations_by_bitsandbytes_need_its_extra(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    with monkeypatch.context() as patch:
        hide(patch, "bitsandbytes")
        require_trainable(Settings(), Adaptation())
        with pytest.raises(UsageError, match=r"^bitsandbytes is not installed"):
            require_trainable(Settings(), Adaptation(**options))
    require_trainable(Settings(), Adaptation(**options))


def test_placeholder_optimizer_is_refused() -> None:
    weights = [torch.nn.Parameter(torch.ones(2))]
    require_real(torch.optim.AdamW(weights))
    with pytest.raises(UsageError, match="estimated, but not used for training"):
        require_real(BlockwiseAdamW(weights))


def test_check_does_not_import_torch() -> None:
    script = "import sys, shoestring.techniques.trainable; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
