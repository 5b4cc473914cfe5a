"""Checkpointed blocks are found in any model, give the same bits, and update running statistics once."""

import pytest
import torch
from torch import nn

from shoestring.base.errors import UsageError
from shoestring.techniques import checkpointing


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        self.dropout = nn.Dropout(0.3)
        self.calls = 0

    def forward(self, values, *, scale):
        self.calls += 1
        return values + self.dropout(torch.relu(self.inner(values))) * scale


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))

    def forward(self, values):
        values = self.first(values)
        for block in self.blocks:
            values = block(values, scale=torch.full((1,), 2.0))
        return self.head(values)


def run_two_updates(setting: str | None):
    torch.manual_seed(0)
    model = Model()
    checkpointing.apply(model, object(), setting)
    losses = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        losses.append(model(torch.randn(6, 8)).square().sum())
        losses[-1].backward()
    return model, {
        **{f"loss {number}": loss.detach() for number, loss in enumerate(losses)},
        **{f"gradient of {name}": weight.grad for name, weight in model.named_parameters()},
        **model.state_dict(),
    }


@pytest.mark.parametrize(("setting", "count"), [("full", 3), ("2", 2)])
def test_checkpointing_does_not_change_bits_or_statistics(setting: str, count: int) -> None:
    plain, expected = run_two_updates("no")
    model, result = run_two_updates(setting)
    assert result.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(result[name], expected[name])] == []
    assert [block.calls for block in plain.blocks] == [2, 2, 2]
    assert [block.calls for block in model.blocks] == [4] * count + [2] * (3 - count)


def test_disabled_checkpointing_changes_nothing() -> None:
    for setting in (None, "no", "0"):
        model = Model()
        assert checkpointing.apply(model, object(), setting) == 0
        assert all("forward" not in vars(module) for module in model.modules())


def test_blocks_run_once_without_gradients() -> None:
    model = Model().eval()
    checkpointing.apply(model, object(), "full")
    with torch.no_grad():
        model(torch.randn(2, 8))
    assert [block.calls for block in model.blocks] == [1, 1, 1]


def test_blocks_of_the_recipe_come_first() -> None:
    class Recipe:
        def blocks(self, model):
            return [model.head, model.first]

    model = Model()
    assert checkpointing.blocks(model, Recipe()) == [model.head, model.first]
    assert checkpointing.apply(model, Recipe(), "1") == 1
    assert "forward" in vars(model.head) and "forward" not in vars(model.first)


def test_blocks_are_repeated_modules_of_the_outermost_lists() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
            self.stages = nn.Sequential(nn.Sequential(Block(), Block()), nn.Linear(8, 8), nn.Sequential(Block()))
            self.single = nn.Sequential(Block())
            self.branches = nn.ModuleList([nn.ModuleList([Model(), Model()]), nn.ModuleList([nn.Linear(8, 8)])])

    model = Nested()
    pair = model.branches[0]
    assert checkpointing.blocks(model, object()) == [model.stages[0], model.stages[2], pair[0], pair[1]]


def test_missing_blocks_are_an_error_with_their_number() -> None:
    with pytest.raises(UsageError, match="has 3 blocks"):
        checkpointing.apply(Model(), object(), "4")
    with pytest.raises(UsageError, match="no blocks"):
        checkpointing.apply(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), object(), "full")


def test_layers_of_transformers_use_their_own_checkpointing() -> None:
    """It disables the cache of keys and values, which a second forward would extend."""
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**sizes, num_hidden_layers=2, num_key_value_heads=2)
    gradients = {}
    for setting in ("no", "full"):
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config).train()
        assert checkpointing.apply(model, object(), setting) == (2 if setting == "full" else 0)
        tokens = torch.arange(10).view(2, 5)
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        gradients[setting] = [weight.grad for weight in model.parameters()]
    assert all(map(torch.equal, gradients["no"], gradients["full"]))
