"""The search for what overflows in fp16, by models with a known place."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from shoestring.base.settings import Settings
from shoestring.recipe.adaptation import Adaptation
from shoestring.techniques import adapt, deferred_casts, fp32_modules
from shoestring.training.data.loading import Loader
from shoestring.training.data.order import DataOrder
from shoestring.training.data.seeding import seed_all
from shoestring.training.engine import overflow
from shoestring.training.engine.first_microbatch import FirstMicrobatch
from shoestring.training.engine.overflow import find_overflow
from shoestring.training.engine.precision import mixed_precision
from tests.overflowing import Model, Normal, Tokens, Unmendable

CPU = torch.device("cpu")


def find(recipe, model=None, *, precision="fp16", micro_batch=4, polls=None, seeds=True):
    if seeds:
        seed_all(0)
    model = model or recipe.model()
    data = recipe.data()
    order = DataOrder(samples=len(data), effective_batch=recipe.effective_batch, seed=0)
    with Loader(recipe, data, order, seed=0, device=CPU, workers=0) as loader:
        first = FirstMicrobatch(
            model=model,
            make_loss=lambda: recipe.loss,
            loader=loader,
            micro_batch=micro_batch,
            mixed_precision=mixed_precision(precision, CPU),
            device=CPU,
            seed=0,
            poll=lambda: polls.append(1) if polls is not None else None,
        )
        return find_overflow(first)


class TwoOverflow(Tokens):
    scales = (2000, 1, 2000)


@pytest.mark.parametrize("micro_batch", [1, 4])
def test_modules_are_found_in_the_order_of_their_execution(micro_batch):
    found = find(TwoOverflow(), micro_batch=micro_batch)
    assert found.modules == ("layers.0.mlp.down_proj", "layers.2.mlp.down_proj")
    assert found.place == "the output of layers.0.mlp.down_proj" and found.samples == min(micro_batch, 2)
    assert found.fp16_loss == pytest.approx(found.fp32_loss, rel=1e-2)


def test_a_normal_model_costs_one_forward():
    polls = []
    assert find(Normal(), polls=polls) is None and len(polls) == 1


def test_what_is_in_fp32_already_remains_so():
    recipe, polls = Tokens(), []
    seed_all(0)
    fp32_modules.apply(model := recipe.model(), "layers.1.mlp")
    assert find(recipe, model, polls=polls) is None and len(polls) == 1


class Stream(nn.Module):
    """A residual stream whose summands do not overflow in fp16, but their sum does."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(200, 16), nn.Linear(16, 200)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3))

    def forward(self, tokens):
        values = self.embed(tokens)
        for layer in self.layers:
            values = values + 3e4 * layer(values / 3e4)
        return self.head(functional.layer_norm(values.float(), (16,)))


class ResidualStream(Tokens):
    """Weights in fp16, with which the embeddings and all sums are in fp16. Each layer adds nearly 3e4."""

    def model(self):
        model = Stream()
        for layer in model.layers:
            layer[0].bias.data.fill_(3.0)
        return model.half()


def test_the_summand_of_a_residual_stream_is_in_fp32():
    found = find(ResidualStream())
    # The sum with a summand in fp32 is in fp32, and so are all that follow.
    assert found.modules == ("layers.2.1",) and found.place == "the input of head"
    assert found.fp16_loss == pytest.approx(found.fp32_loss, rel=1e-2)


class Scores(nn.Module):
    """Attention whose scores are computed in fp16, outside of any other module, and overflow."""

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(16, 16), nn.Linear(16, 16)
        self.o_proj = nn.Linear(16, 16)
        for layer in (self.q_proj, self.k_proj):
            layer.weight.data.mul_(500)

    def forward(self, values):
        query, key = self.q_proj(values), self.k_proj(values)
        scores = (query @ key.transpose(-2, -1) * 1e-6).to(query.dtype)
        return self.o_proj(scores.softmax(dim=-1).to(query.dtype) @ query) / 500


class Attention(Tokens):
    def model(self):
        return nn.Sequential(nn.Embedding(200, 16), Scores(), nn.Linear(16, 200))


def test_math_within_a_module_puts_the_module_in_fp32():
    found = find(Attention())
    assert found.place == "the input of 1.o_proj" and found.modules == ("1",)


class Logits(Normal):
    """The loss multiplies the logits in their type."""

    def loss(self, model, batch):
        return functional.cross_entropy((model(batch) * 1e6).float().flatten(0, 1) / 1e6, batch.flatten())


def test_the_loss_may_need_its_inputs_in_fp32(monkeypatch):
    found = find(Logits())
    assert found.place == "the loss" and found.modules == ("head",)
    monkeypatch.setattr(overflow, "MOST_WEIGHTS", 0.1)
    assert find(Logits()).modules == ()


def test_what_cannot_be_mended_is_told():
    found = find(Unmendable())
    assert found.modules == () and found.place == "the loss"
    assert found.fp16_loss == float("inf") and 4 < found.fp32_loss < 7


class Drawing(Tokens):
    """Draws random numbers in the loss, for each type others."""

    def loss(self, model, batch):
        logits = model(batch)
        noise = torch.randn_like(logits).float().abs().mean() * (3 if logits.dtype == torch.float16 else 1)
        return super().loss(model, batch) + noise + np.random.rand() + random.random()


LOWEST = torch.finfo(torch.float32).min


class Add(nn.Module):
    def forward(self, values, mask):
        return values + mask


class Masked(nn.Module):
    """Masks tokens by a `lowest` number, by default one that is finite in fp32, and -inf in fp16."""

    def __init__(self, lowest=LOWEST):
        super().__init__()
        self.lowest = lowest
        self.embed, self.add, self.head = nn.Embedding(200, 16), Add(), nn.Linear(16, 200)

    def forward(self, tokens):
        logits = self.head(self.embed(tokens))
        mask = torch.zeros(200)
        mask[0] = self.lowest
        return self.add(logits, mask.to(logits.dtype))


class MaskedTokens(Tokens):
    def model(self):
        return Masked()

    def data(self):
        return super().data().clamp(min=1)


def test_what_is_not_finite_in_fp32_either_is_no_overflow(monkeypatch):
    polls, recipe = [], MaskedTokens()
    assert find(recipe, Masked(-torch.inf), polls=polls) is None and len(polls) == 2
    model = Masked(-torch.inf)
    model.embed.weight.data.mul_(1e5)
    model.head.weight.data.mul_(1e-5)
    monkeypatch.setattr(overflow, "MOST_WEIGHTS", 0.6)
    assert find(recipe, model).modules == ("head",)


class RaisesForNan(Tokens):
    def loss(self, model, batch):
        if model(batch).isnan().any():
            raise ValueError("not a number")
        return super().loss(model, batch)


class Raises(Tokens):
    def loss(self, model, batch):
        raise ValueError("two samples")


class LacksMemory(Tokens):
    def loss(self, model, batch):
        model(batch)
        raise torch.OutOfMemoryError("CUDA out of memory")


class NeverFinite(Tokens):
    def loss(self, model, batch):
        return super().loss(model, batch) * float("nan")


def test_losses_that_cannot_be_compared():
    assert find(Drawing()).modules == find(RaisesForNan()).modules == ("layers.1.mlp.down_proj",)
    for recipe in (MaskedTokens(), Raises(), LacksMemory(), NeverFinite()):
        assert find(recipe) is None, recipe


class WithState(Drawing):
    """Draws random numbers in a model with a running mean and with dropout."""

    def model(self):
        return nn.Sequential(super().model(), nn.Dropout(), nn.BatchNorm1d(8)).train()


def test_nothing_is_left_of_the_search():
    recipe = WithState()
    model = recipe.model()
    model[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    states, modes = [], [module.training for module in model.modules()]

    def remember():
        states.append((torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()))

    remember()
    assert find(recipe, model, seeds=False).modules
    remember()
    assert states[0] == states[1]
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for module in model.modules():
        assert "forward" not in vars(module) and not module._forward_hooks and not module._forward_pre_hooks


def test_an_adapter_on_an_fp16_base():
    pytest.importorskip("peft")
    seed_all(0)
    adaptation = Adaptation(lora_r=2, lora_targets="down_proj", weights="fp16")
    model = deferred_casts.convert_all(adapt.trained_model(Model(Tokens.scales), adaptation, Settings()))
    found = find(Tokens(), model)
    prefix = "base_model.model"
    # Autocast on a CPU does not cast the fp16 weights of norms, whose inputs are in fp32 from there on.
    assert found.modules == (
        f"{prefix}.layers.1.mlp.down_proj.base_layer",
        f"{prefix}.layers.2.norm",
        f"{prefix}.norm",
    )
    # Without autocast, no layer in fp16 accepts the results in fp32 either.
    names = [name.removeprefix(f"{prefix}.") for name in find(Tokens(), model, precision="fp32").modules]
    expected = ["layers.1.mlp.down_proj.base_layer", "layers.2.norm", "layers.2.mlp.up_proj"]
    assert names == [*expected, "layers.2.mlp.down_proj.base_layer", "norm", "head"]
