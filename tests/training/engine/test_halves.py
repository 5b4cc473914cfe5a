"""The comparison of the loss of a microbatch with that of its halves."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from shoestring.recipe.contract import datasets
from shoestring.training.data.loading import Loader
from shoestring.training.data.order import DataOrder
from shoestring.training.data.padding import pad_batch
from shoestring.training.data.seeding import seed_all
from shoestring.training.engine.first_microbatch import FirstMicrobatch
from shoestring.training.engine.halves import examine_loss
from shoestring.training.engine.precision import mixed_precision
from tests.contrastive import InfoNCE

CPU = torch.device("cpu")


class Padded:
    """Sequences of different lengths; the loss of a token is the square of its value."""

    effective_batch = 8

    def model(self):
        return nn.Linear(1, 1)

    def data(self):
        return [torch.randn(3 + 5 * number, generator=torch.Generator().manual_seed(number)) for number in range(8)]

    def collate(self, samples):
        return pad_batch(samples, 0.0), pad_batch([torch.ones_like(sample) for sample in samples], 0.0)

    def loss(self, model, batch):
        values, mask = batch
        return (model(values[..., None])[..., 0].square() * mask).sum(), mask.sum()


class MeanOverTokens(Padded):
    def loss(self, model, batch):
        total, weight = super().loss(model, batch)
        return total / weight


class Denoising(Padded):
    """Noise is drawn in the loss."""

    def loss(self, model, batch):
        total, weight = super().loss(model, (batch[0] + torch.randn_like(batch[0]), batch[1]))
        return total + np.random.rand() + random.random(), weight


class Mixing(Padded):
    """Samples are mixed with random others of their batch in `collate`."""

    def collate(self, samples):
        values, mask = super().collate(samples)
        return values + values[torch.randperm(len(values))], mask


class Noisy(InfoNCE):
    """Views that are augmented in the loss."""

    def loss(self, model, batch):
        return super().loss(model, [view + 0.1 * torch.randn_like(view) for view in batch])


class Augmented(Padded):
    """Samples that differ each time they are fetched."""

    def data(self):
        return Unrepeatable(super().data())


class Unrepeatable:
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index] * np.random.default_rng().uniform(0.5, 1.5)


class RandomLoss(Padded):
    def __init__(self):
        self.generator = np.random.default_rng(0)

    def loss(self, model, batch):
        total, weight = super().loss(model, batch)
        return total * self.generator.uniform(0.5, 1.5), weight


class LateRandomLoss(Padded):
    """The first loss creates the generator, which has another seed in each process."""

    generator = None

    def loss(self, model, batch):
        self.generator = self.generator or np.random.default_rng()
        total, weight = super().loss(model, batch)
        return total * self.generator.uniform(0.5, 1.5), weight


class UnseededLoss(Padded):
    def loss(self, model, batch):
        total, weight = super().loss(model, batch)
        return total * np.random.default_rng().uniform(0.5, 1.5), weight


class Centred(Padded):
    """The centre of DINO: a running mean in a module that the recipe holds, a queue and a count."""

    def __init__(self, place):
        self.place, self.centre, self.queue, self.calls = place, nn.BatchNorm1d(1).eval(), [], 0

    def loss(self, model, batch):
        total, weight = super().loss(model, batch)
        if self.place == "buffer":
            state = self.centre.running_mean.clone()
            self.centre.running_mean.mul_(0.9).add_(0.1)
        elif self.place == "list":
            state = len(self.queue)
            self.queue.append(total)
        else:
            state = self.calls
            self.calls += 1
        return total + state * weight, weight


class Counting(Padded):
    """A state that its value does not depend on is nobody's concern."""

    calls = 0

    def loss(self, model, batch):
        self.calls += 1
        return super().loss(model, batch)


class NeedsEight(Padded):
    def loss(self, model, batch):
        if len(batch[0]) != 8:
            raise ValueError("eight samples")
        return super().loss(model, batch)


class LacksMemory(Padded):
    def loss(self, model, batch):
        raise torch.OutOfMemoryError("CUDA out of memory")


class NotFinite(Padded):
    def loss(self, model, batch):
        return super().loss(model, batch)[0] * len(batch[0]) * float("inf")


def examine(recipe, *, model=None, micro_batch=None, precision="fp32", workers=0, polls=None):
    data = datasets(recipe)["train"]
    order = DataOrder(samples=len(data), effective_batch=recipe.effective_batch, seed=0)
    with Loader(recipe, data, order, seed=0, device=CPU, workers=workers) as loader:
        first = FirstMicrobatch(
            model=model or recipe.model(),
            make_loss=lambda: recipe.loss,
            loader=loader,
            micro_batch=micro_batch or recipe.effective_batch,
            mixed_precision=mixed_precision(precision, CPU),
            device=CPU,
            seed=0,
            poll=lambda: polls.append(1) if polls is not None else None,
        )
        return examine_loss(first)


def compare(recipe, **values):
    report = examine(recipe, **values)
    assert not report.is_unseeded and not report.changed
    return report.difference


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_only_a_loss_over_the_batch_differs(precision):
    seed_all(0)
    for recipe in (InfoNCE(), Noisy()):
        difference = compare(recipe, precision=precision)
        assert difference.samples == 32 and difference.whole - difference.halves > 0.3
        assert f"{difference.whole:.6g}" in difference.text and f"{difference.halves:.6g}" in difference.text
        assert "whole_batch = True" in difference.text
    for recipe in (Padded(), Denoising(), Mixing(), NeedsEight(), LacksMemory(), NotFinite(), Counting()):
        assert compare(recipe, precision=precision) is None, recipe
    assert compare(InfoNCE(), micro_batch=1, precision=precision) is None


def test_mean_over_tokens_differs():
    seed_all(0)
    difference = compare(MeanOverTokens())
    recipe, data = MeanOverTokens(), MeanOverTokens().data()
    seed_all(0)
    model = recipe.model()
    order = DataOrder(samples=8, effective_batch=8, seed=0).indices(0)
    parts = [order, order[:4], order[4:]]
    values = [recipe.loss(model, recipe.collate([data[index] for index in part])).item() for part in parts]
    assert difference.whole == pytest.approx(values[0]) and difference.halves == pytest.approx(sum(values[1:]) / 2)


def test_randomness_and_state_are_not_taken_for_dependent_samples():
    seed_all(0)
    assert compare(Augmented()) is None
    recipe = RandomLoss()
    state = str(recipe.generator.bit_generator.state)
    assert compare(recipe) is None and compare(LateRandomLoss()) is None
    report = examine(UnseededLoss())
    assert report.is_unseeded and report.difference is None and not report.changed
    assert "random numbers that Shoestring does not seed" in report.unseeded_text
    assert str(recipe.generator.bit_generator.state) == state
    for place, path in [
        ("buffer", "loss.centre._buffers['running_mean']"),
        ("list", "loss.queue"),
        ("count", "loss.calls"),
    ]:
        recipe = Centred(place)
        report = examine(recipe)
        assert report.changed == [path] and report.difference is None and not report.is_unseeded
        assert path in report.changed_text and "earlier calls" in report.changed_text
        assert (recipe.centre.running_mean.item(), recipe.queue, recipe.calls) == (0, [], 0)


def test_nothing_changes_and_batches_of_workers_are_the_same():
    class Counting(nn.Module):
        """A buffer of more than a MiB, and a smaller one, which every forward changes."""

        def __init__(self):
            super().__init__()
            self.layers = InfoNCE().model()
            self.frozen = nn.BatchNorm1d(4).eval()
            self.register_buffer("queue", torch.zeros(300_000))
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.queue += 1
            self.count = self.count + 1
            return self.layers(self.frozen(x))

    seed_all(0)
    model = Counting()
    modes = [module.training for module in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    polls = []
    compare(Noisy(), model=model, polls=polls)
    assert len(polls) == 14
    difference = compare(InfoNCE(), model=model)
    assert difference and difference == compare(InfoNCE(), model=model, workers=1)
    assert compare(LacksMemory(), model=model) is None
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]
    assert all(parameter.grad is None for parameter in model.parameters())
