"""Advice on traces of small models: where the waste is it is told of, where it is not nothing is."""

import dataclasses

import pytest
import torch
from torch import nn

from shoestring.hardware import targets
from shoestring.plan import advice
from shoestring.plan.candidates import Candidate, candidate
from shoestring.recipe.finding import find
from shoestring.settings import Settings
from shoestring.trace import Tracer

T4 = targets.find("t4")
FP32 = Settings(micro_batch=4, precision="fp32", checkpointing="no")


class Encoding:
    """Three texts are written from what one encoder sees of an image."""

    effective_batch, times = 4, 3

    def __init__(self, times=3):
        self.times = times

    def model(self):
        layers = [
            nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0, norm_first=True) for _ in range(3)
        ]
        return nn.ModuleDict(
            {"stem": nn.Conv2d(3, 64, 8, stride=8), "layers": nn.Sequential(*layers), "head": nn.Linear(64, 10)}
        )

    def batch(self, size):
        return torch.zeros(size, 3, 64, 64)

    def encode(self, model, batch):
        return model["layers"](model["stem"](batch).flatten(2).transpose(1, 2))

    def loss(self, model, batch):
        return sum(model["head"](self.encode(model, batch)).square().mean() for _ in range(self.times))

    def optimizer(self, model):
        return torch.optim.AdamW(model.parameters())


def seen(recipe, settings=FP32, target=T4, **facts):
    loaded = find(recipe)
    with Tracer(loaded) as tracer:
        found: Candidate = candidate(tracer, loaded, target, settings)
    trace = dataclasses.replace(found.trace, facts=dataclasses.replace(found.trace.facts, **facts))
    return advice.Seen(chosen=dataclasses.replace(found, trace=trace), wanted=Settings(), loaded=loaded, target=target)


@pytest.fixture(scope="module")
def thrice():
    return seen(Encoding())


@pytest.fixture(scope="module")
def once():
    return seen(Encoding(times=1))


def test_an_encoder_that_runs_three_times_is_seen_and_layers_alike_are_not(thrice, once):
    said = advice.same_work_again(thrice)
    assert "3 times" in said and "saves up to" in said
    assert advice.same_work_again(once) == ""
    assert advice.repeated(once.chosen.trace) == (1, 0)


def test_work_that_launches_more_than_it_does(once):
    assert "too little work" in advice.too_small_work(once)
    assert "compile=graphs asks for all kernels" in advice.too_small_work(once)
    chosen = dataclasses.replace(once.chosen, settings=once.chosen.settings.replace(compile="graphs"))
    assert "compile=graphs" not in advice.too_small_work(dataclasses.replace(once, chosen=chosen))

    class Large(Encoding):
        def batch(self, size):
            return torch.zeros(size, 3, 1024, 1024)

        def encode(self, model, batch):
            return model["stem"](batch).flatten(2).transpose(1, 2) @ torch.zeros(64, 64, device=batch.device)

        def model(self):
            return nn.ModuleDict({"stem": nn.Conv2d(3, 64, 3, padding=1), "head": nn.Linear(64, 64)})

    assert advice.too_small_work(seen(Large(times=1), FP32.replace(micro_batch=2))) == ""
    assert advice.too_small_work(dataclasses.replace(once, target=targets.find("cpu"))) == ""


def test_a_type_that_is_emulated(once):
    asked = dataclasses.replace(once, wanted=Settings(precision="bf16"))
    assert "emulates it" in advice.emulated_precision(asked) and "fp16" in advice.emulated_precision(asked)
    assert advice.emulated_precision(dataclasses.replace(asked, target=targets.find("l4"))) == ""
    assert advice.emulated_precision(once) == ""


def test_what_the_recipe_does_not_say_is_assumed_aloud(once):
    class Silent(Encoding):
        optimizer = None

    said = advice.assumed_parts(dataclasses.replace(once, loaded=find(Silent())))
    assert "AdamW with a rate of 0.001" in said
    assert advice.assumed_parts(once) == ""


def test_replicas_in_one_process_and_samples_that_are_padded(once):
    def with_facts(**facts):
        trace = dataclasses.replace(once.chosen.trace, facts=dataclasses.replace(once.chosen.trace.facts, **facts))
        return dataclasses.replace(once, chosen=dataclasses.replace(once.chosen, trace=trace))

    assert "DataParallel" in advice.replicas_in_one_process(with_facts(data_parallel=True))
    assert advice.replicas_in_one_process(once) == ""
    assert "7%" in advice.padded_samples(with_facts(lengths=(34.0, 512.0)))
    assert advice.padded_samples(with_facts(lengths=(400.0, 512.0))) == advice.padded_samples(once) == ""


def test_states_beside_weights_in_a_checkpoint(once):
    assert advice.optimizer_beside_weights(once) == ""  # too small to matter

    class Wide(Encoding):
        def model(self):
            return nn.ModuleDict({"stem": nn.Conv2d(3, 64, 8, stride=8), "head": nn.Linear(64, 200_000)})

        def encode(self, model, batch):
            return model["stem"](batch).mean((2, 3))

    assert "light/" in advice.optimizer_beside_weights(seen(Wide(times=1)))


def test_rules_speak_in_their_order_and_only_those_that_apply(thrice):
    said = advice.advice(thrice)
    assert len(said) >= 2 and "3 times" in said[0]
