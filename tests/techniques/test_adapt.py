"""What is done to any recipe's model and optimizer, and what cannot be."""

import sys

import pytest
import torch
from torch import nn

from shoestring.errors import UsageError
from shoestring.recipe import finding
from shoestring.recipe.options import Adaptation
from shoestring.settings import Settings
from shoestring.techniques import adapt, eightbit


def made() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.LayerNorm(8), nn.Linear(8, 2))


class Mine:
    weights = "an attribute of its own, not the option"

    def __init__(self, make=torch.optim.AdamW, **options):
        self.make, self.more = make, options

    def model(self):
        return made()

    def batch(self, size):
        return torch.zeros(size, 4)

    def loss(self, model, batch):
        return model(batch).mean()

    def optimizer(self, model):
        return self.make(model.parameters(), lr=0.25, **self.more)


def test_types_of_weights_but_not_of_statistics_and_their_norms() -> None:
    model = adapt.model(made(), Adaptation(weights="bf16"))
    assert {name: x.dtype for name, x in model.named_parameters() if name.endswith("weight")} == {
        "0.weight": torch.bfloat16,
        "1.weight": torch.float32,
        "2.weight": torch.bfloat16,
        "3.weight": torch.bfloat16,
    }
    assert model[1].running_mean.dtype == torch.float32


def test_nothing_is_done_that_was_not_asked_for() -> None:
    model = made()
    assert adapt.model(model, Adaptation()) is model
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


def test_options_are_the_recipes_where_it_has_them() -> None:
    assert finding.find(Mine()).adaptation == Adaptation()
    assert finding.load(Mine(), {"lora_r": 3, "lora_targets": "0"}).adaptation.lora_r == 3
    with pytest.raises(UsageError, match="4-bit weights cannot be trained") as refused:
        finding.load(Mine(), {"quantization": "nf4", "lora_alpha": 0})
    assert len(refused.value.problems) == 2
    # The chart's model has adapters that it puts in itself.
    chart = finding.find("chart")
    assert chart.options["lora_r"] and chart.adaptation == Adaptation()
    with pytest.raises(UsageError, match="lora_alpha: unknown"):
        finding.load("chart", {"lora_alpha": 3})


def test_adapters_go_where_they_are_named_and_nowhere_without_effect() -> None:
    pytest.importorskip("peft")
    model = adapt.model(made(), Adaptation(lora_r=2, lora_targets="0"))
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    assert len(trained) == 2 and all(".0.lora_" in name for name in trained)
    with pytest.raises(UsageError, match="cannot be used"):
        adapt.model(made(), Adaptation(lora_r=2))
    attention = nn.Sequential(nn.MultiheadAttention(8, 2))
    with pytest.raises(UsageError, match="passes adapters by"):
        adapt.model(attention, Adaptation(lora_r=2))


def test_where_adapters_cannot_go_peft_is_not_imported(monkeypatch) -> None:
    """It takes seconds, and every plan asks what adapters would bring."""
    monkeypatch.delitem(sys.modules, "peft", raising=False)
    with pytest.raises(UsageError, match="cannot be used"):
        adapt.model(made(), Adaptation(lora_r=2))
    assert "peft" not in sys.modules


def test_bitsandbytes_takes_the_groups_of_adamw_and_of_nothing_else() -> None:
    (group,) = adapt.optimizer(finding.load(Mine(weight_decay=0.5), {"optimizer_states": "8bit"}), made()).param_groups
    assert (group["lr"], group["weight_decay"], len(group["params"])) == (0.25, 0.5, 8)
    with pytest.raises(UsageError, match="the recipe has SGD"):
        adapt.optimizer(finding.load(Mine(torch.optim.SGD), {"optimizer_states": "8bit"}), made())
    with pytest.raises(UsageError, match="it is AdamW"):
        adapt.optimizer(finding.load(Mine(amsgrad=True), {"optimizer_states": "8bit"}), made())


def test_what_only_shows_memory_is_not_trained_with() -> None:
    loaded = finding.find(Mine(eightbit.BlockwiseAdamW))
    with pytest.raises(UsageError, match="estimated, not trained"):
        adapt.trained_optimizer(loaded, made(), torch.device("cpu"))


def test_4_bits_and_weights_that_come_and_go_are_refused() -> None:
    with pytest.raises(UsageError, match="offload=parameters"):
        adapt.trained_model(made(), Adaptation(quantization="nf4", lora_r=2), Settings(offload="parameters"))
