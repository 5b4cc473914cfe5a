"""Adaptations of any recipe's model and optimizer, and combinations that are refused."""

import sys

import pytest
import torch
from torch import nn

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.recipe import finding
from shoestring.recipe.adaptation import Adaptation
from shoestring.techniques import adapt, eightbit


def build_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.LayerNorm(8), nn.Linear(8, 2))


class Mine:
    weights = "an attribute of its own, not the option"

    def __init__(self, make=torch.optim.AdamW, **options):
        self.make, self.optimizer_options = make, options

    def model(self):
        return build_model()

    def batch(self, size):
        return torch.zeros(size, 4)

    def loss(self, model, batch):
        return model(batch).mean()

    def optimizer(self, model):
        return self.make(model.parameters(), lr=0.25, **self.optimizer_options)


def test_weights_are_cast_except_those_of_batch_norms() -> None:
    model = adapt.model(build_model(), Adaptation(weights="bf16"))
    assert {name: weight.dtype for name, weight in model.named_parameters() if name.endswith("weight")} == {
        "0.weight": torch.bfloat16,
        "1.weight": torch.float32,
        "2.weight": torch.bfloat16,
        "3.weight": torch.bfloat16,
    }
    assert model[1].running_mean.dtype == torch.float32


def test_default_adaptation_changes_nothing() -> None:
    model = build_model()
    assert adapt.model(model, Adaptation()) is model
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


def test_recipes_own_options_replace_the_adaptation() -> None:
    assert finding.find(Mine()).adaptation == Adaptation()
    assert finding.load(Mine(), {"lora_r": 3, "lora_targets": "0"}).adaptation.lora_r == 3
    with pytest.raises(UsageError, match="4-bit weights cannot be trained") as caught:
        finding.load(Mine(), {"quantization": "nf4", "lora_alpha": 0})
    assert len(caught.value.problems) == 2
    # The chart recipe adds its adapters itself.
    chart = finding.find("chart")
    assert chart.options["lora_r"] and chart.adaptation == Adaptation()
    with pytest.raises(UsageError, match="lora_alpha: unknown"):
        finding.load("chart", {"lora_alpha": 3})


def test_adapters_are_added_to_the_named_modules_only() -> None:
    pytest.importorskip("peft")
    model = adapt.model(build_model(), Adaptation(lora_r=2, lora_targets="0"))
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    assert len(trained) == 2 and all(".0.lora_" in name for name in trained)
    with pytest.raises(UsageError, match="cannot be used"):
        adapt.model(build_model(), Adaptation(lora_r=2))
    attention = nn.Sequential(nn.MultiheadAttention(8, 2))
    with pytest.raises(UsageError, match="bypasses adapters"):
        adapt.model(attention, Adaptation(lora_r=2))


@pytest.mark.parametrize(("dtype", "stored"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_adapters_have_their_own_type(dtype, stored) -> None:
    pytest.importorskip("peft")
    model = adapt.model(build_model(), Adaptation(lora_r=2, lora_targets="0", lora_dtype=dtype, weights="fp16"))
    assert {weight.dtype for weight in model.parameters() if weight.requires_grad} == {stored}
    frozen = {
        weight.dtype for name, weight in model.named_parameters() if not weight.requires_grad and ".1." not in name
    }
    assert frozen == {torch.float16}


def test_peft_is_not_imported_for_impossible_adapters(monkeypatch) -> None:
    """The import takes seconds, and every plan evaluates adapters."""
    monkeypatch.delitem(sys.modules, "peft", raising=False)
    with pytest.raises(UsageError, match="cannot be used"):
        adapt.model(build_model(), Adaptation(lora_r=2))
    assert "peft" not in sys.modules


def test_bitsandbytes_only_replaces_adamw() -> None:
    (group,) = adapt.optimizer(
        finding.load(Mine(weight_decay=0.5), {"optimizer_states": "8bit"}), build_model()
    ).param_groups
    assert (group["lr"], group["weight_decay"], len(group["params"])) == (0.25, 0.5, 8)
    with pytest.raises(UsageError, match="the recipe has SGD"):
        adapt.optimizer(finding.load(Mine(torch.optim.SGD), {"optimizer_states": "8bit"}), build_model())
    with pytest.raises(UsageError, match="need AdamW without amsgrad"):
        adapt.optimizer(finding.load(Mine(amsgrad=True), {"optimizer_states": "8bit"}), build_model())


def test_placeholder_optimizer_cannot_train() -> None:
    loaded = finding.find(Mine(eightbit.BlockwiseAdamW))
    with pytest.raises(UsageError, match="estimated, but not used for training"):
        adapt.trained_optimizer(loaded, build_model(), torch.device("cpu"))


def test_offloaded_4_bit_weights_are_refused() -> None:
    with pytest.raises(UsageError, match="offload=parameters"):
        adapt.trained_model(build_model(), Adaptation(quantization="nf4", lora_r=2), Settings(offload="parameters"))
