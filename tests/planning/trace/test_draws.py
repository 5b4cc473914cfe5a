"""Conditions on random numbers of the host: LayerDrop skips no layer, and a note names the place."""

import json

import pytest
import torch
from torch import nn
from torch.nn import functional

import shoestring
from shoestring.base.errors import TraceError
from shoestring.base.settings import Settings
from shoestring.hardware.catalog import DEVICES
from shoestring.planning.trace import Tracer
from shoestring.planning.trace.record import Op, Trace
from shoestring.recipe.finding import find
from tests.mine import Mine

LAYERS = 6


class Dropping(Mine):
    """Skips each layer with a probability."""

    probability = 0.5

    def model(self):
        return nn.Sequential(*(nn.Linear(3, 3) for _ in range(LAYERS)))

    def is_skipped(self, batch):
        dropout_probability = torch.rand([])
        return dropout_probability < self.probability

    def loss(self, model, batch):
        for layer in model:
            if self.is_skipped(batch):
                continue
            batch = layer(batch)
        return batch.square().mean()


class Noisy(Mine):
    """Draws random numbers for a microbatch of two samples, and none for one of one sample."""

    def model(self):
        return nn.Linear(8, 8)

    def batch(self, size):
        return torch.zeros(size, 1, 4, 8)

    def loss(self, model, batch):
        values = model(batch)
        return self.noise(values, 0.1 * (len(batch) - 1)).square().mean()

    def noise(self, values, rate):
        return functional.dropout(values, rate)


class NoisyAttention(Noisy):
    def noise(self, values, rate):
        return functional.scaled_dot_product_attention(values, values, values, dropout_p=rate)


class NeverDropping(Dropping):
    probability = 0.0


class AlwaysDropping(Dropping):
    probability = 1.0

    def loss(self, model, batch):
        return super().loss(model, model[0](batch))


class Keeping(Dropping):
    def is_skipped(self, batch):
        return not torch.rand(1, generator=torch.Generator().manual_seed(0)) > self.probability


class Reading(Dropping):
    def is_skipped(self, batch):
        return torch.rand_like(torch.empty(1, 1, dtype=torch.float16)).item() < self.probability


class Rounding(Dropping):
    """Stochastic depth as it is usually written."""

    def is_skipped(self, batch):
        return (1 - self.probability + torch.rand(1, dtype=torch.float64)).floor() == 0


class OnTheDevice(Dropping):
    def is_skipped(self, batch):
        return torch.rand([], device=batch.device) < self.probability


def traced(recipe):
    with Tracer(find(recipe)) as tracer:
        return tracer.trace(Settings(micro_batch=2, precision="fp32"), accumulate=1, device=DEVICES["t4"])


def products(trace):
    """Return the number of matrix products in the two forward passes of a trace."""
    return sum(event.name == "aten::addmm" for event in trace.events if isinstance(event, Op))


@pytest.mark.parametrize("kind", [Dropping, NeverDropping, Keeping, Reading, Rounding])
def test_no_layer_is_skipped(kind):
    assert products(traced(kind())) == 2 * LAYERS


def test_layers_that_are_skipped_for_all_numbers_do_not_run():
    trace = traced(AlwaysDropping())
    assert (products(trace), trace.bounds) == (2, ())


@pytest.mark.parametrize(("kind", "place"), [(Dropping, "loss"), (Keeping, "is_skipped"), (Reading, "is_skipped")])
def test_note_names_the_place_once(kind, place):
    (note,) = traced(kind()).bounds
    assert note.startswith(f"what runs at {__file__}:") and f" in {place} depends on a random number" in note


def test_probability_of_zero_has_no_note():
    assert traced(NeverDropping()).bounds == ()


def test_estimate_has_the_note_but_is_no_upper_one():
    estimate = shoestring.estimate(Dropping(), on="kaggle-t4")
    assert any("depends on a random number" in note for note in estimate.json()["notes"])
    assert estimate.facts.bounds == ()


@pytest.mark.parametrize("recipe", [Noisy, NoisyAttention])
def test_a_trace_knows_whether_an_update_draws_random_numbers(recipe):
    """The weights of each of them begin with random numbers, before the first update."""
    with Tracer(find(recipe())) as tracer:
        one, two = (
            tracer.trace(
                Settings(micro_batch=size, precision="fp16", checkpointing="no"), accumulate=1, device=DEVICES["t4"]
            )
            for size in (1, 2)
        )
    assert (one.draws_random, two.draws_random) == (False, True)
    assert Trace.from_json(json.loads(json.dumps(two.json()))).draws_random


def test_numbers_on_the_device_have_no_value():
    with pytest.raises(TraceError, match="depends on a tensor's values"):
        traced(OnTheDevice())


@pytest.mark.parametrize("layerdrop", [0.0, 0.5])
def test_layerdrop_of_transformers(layerdrop):
    transformers = pytest.importorskip("transformers")

    class Opt(Mine):
        def model(self):
            config = transformers.OPTConfig(
                vocab_size=32,
                hidden_size=16,
                word_embed_proj_dim=16,
                ffn_dim=16,
                num_hidden_layers=LAYERS,
                num_attention_heads=2,
                max_position_embeddings=16,
                layerdrop=layerdrop,
            )
            return transformers.OPTForCausalLM(config)

        def batch(self, size):
            return torch.zeros(size, 8, dtype=torch.long)

        def loss(self, model, batch):
            return model(input_ids=batch, labels=batch, use_cache=False).loss

    trace = traced(Opt())
    assert products(trace) == 2 * 6 * LAYERS  # four in attention, two in the feed-forward network
    assert len(trace.bounds) == (layerdrop > 0)
