"""Advice on traces of small models, with and without the waste that each rule detects."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from shoestring.base.settings import Settings
from shoestring.hardware import targets
from shoestring.planning import advice
from shoestring.planning.candidates import Candidate, candidate
from shoestring.planning.trace import Tracer
from shoestring.recipe.finding import find
from shoestring.recipe.parts import Parts
from shoestring.recipe.parts.data import Data

T4 = targets.find("t4")
FP32 = Settings(micro_batch=4, precision="fp32", checkpointing="no")


class Encoding:
    """Three outputs are computed from one image, which is encoded for each of them."""

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


def advice_context(recipe, settings=FP32, target=T4, **facts):
    loaded = find(recipe)
    with Tracer(loaded) as tracer:
        traced: Candidate = candidate(tracer, loaded, target, settings)
    trace = dataclasses.replace(traced.trace, facts=dataclasses.replace(traced.trace.facts, **facts))
    chosen = dataclasses.replace(traced, trace=trace)
    return advice.AdviceContext(chosen=chosen, requested=Settings(), loaded=loaded, target=target)


@pytest.fixture(scope="module")
def thrice():
    return advice_context(Encoding())


@pytest.fixture(scope="module")
def once():
    return advice_context(Encoding(times=1))


def test_repeated_encoder_is_detected_but_equal_layers_are_not(thrice, once):
    message = advice.repeated_forward(thrice)
    assert "3 times" in message and "saves up to" in message
    assert advice.repeated_forward(once) == ""
    assert advice.repetition(once.chosen.trace) == (1, 0)


@pytest.mark.parametrize(
    ("option", "micro_batch", "longest", "expected"),
    [
        ("a_len", 4, 40, "a_len=160: with --set a_len=40"),
        ("a_len", 16, 40, ""),
        (None, 4, 40, ""),
        ("a_len", 4, 150, ""),
    ],
)
def test_a_largest_length_that_no_sample_has(option, micro_batch, longest, expected):
    facts = SimpleNamespace(lengths=(30.0, longest))
    context = advice.AdviceContext(
        chosen=SimpleNamespace(trace=SimpleNamespace(facts=facts), settings=Settings(micro_batch=micro_batch, gpus=1)),
        requested=Settings(),
        loaded=SimpleNamespace(parts=Parts(data=Data(capacity=160.0, length_option=option)), effective_batch=16),
        target=targets.find("kaggle-t4"),
    )
    message = advice.longer_than_samples(context)
    assert expected in message and bool(message) == bool(expected)


def test_too_small_work_suggests_cuda_graphs(once):
    assert "too little work" in advice.too_small_work(once)
    assert "compile=graphs launches all kernels" in advice.too_small_work(once)
    chosen = dataclasses.replace(once.chosen, settings=once.chosen.settings.replace(compile="graphs"))
    assert "compile=graphs" not in advice.too_small_work(dataclasses.replace(once, chosen=chosen))

    class Large(Encoding):
        def batch(self, size):
            return torch.zeros(size, 3, 1024, 1024)

        def encode(self, model, batch):
            return model["stem"](batch).flatten(2).transpose(1, 2) @ torch.zeros(64, 64, device=batch.device)

        def model(self):
            return nn.ModuleDict({"stem": nn.Conv2d(3, 64, 3, padding=1), "head": nn.Linear(64, 64)})

    assert advice.too_small_work(advice_context(Large(times=1), FP32.replace(micro_batch=2))) == ""
    assert advice.too_small_work(dataclasses.replace(once, target=targets.find("cpu"))) == ""


def test_emulated_precision_is_reported(once):
    bf16 = dataclasses.replace(once, requested=Settings(precision="bf16"))
    assert "emulates it" in advice.emulated_precision(bf16) and "fp16" in advice.emulated_precision(bf16)
    assert advice.emulated_precision(dataclasses.replace(bf16, target=targets.find("l4"))) == ""
    assert advice.emulated_precision(once) == ""


def test_assumed_optimizer_is_reported(once):
    class WithoutOptimizer(Encoding):
        optimizer = None

    message = advice.assumed_parts(dataclasses.replace(once, loaded=find(WithoutOptimizer())))
    assert "AdamW with a learning rate of 0.001" in message
    assert advice.assumed_parts(once) == ""


def test_data_parallel_models_and_padded_samples_are_reported(once):
    def with_facts(**facts):
        trace = dataclasses.replace(once.chosen.trace, facts=dataclasses.replace(once.chosen.trace.facts, **facts))
        return dataclasses.replace(once, chosen=dataclasses.replace(once.chosen, trace=trace))

    assert "DataParallel" in advice.data_parallel_model(with_facts(data_parallel=True))
    assert advice.data_parallel_model(once) == ""
    assert "7%" in advice.padded_samples(with_facts(lengths=(34.0, 512.0)))
    assert advice.padded_samples(with_facts(lengths=(400.0, 512.0))) == advice.padded_samples(once) == ""


def test_large_optimizer_states_in_a_checkpoint_are_reported(once):
    assert advice.optimizer_states_in_checkpoint(once) == ""  # too small to matter

    class Wide(Encoding):
        def model(self):
            return nn.ModuleDict({"stem": nn.Conv2d(3, 64, 8, stride=8), "head": nn.Linear(64, 200_000)})

        def encode(self, model, batch):
            return model["stem"](batch).mean((2, 3))

    assert "light/" in advice.optimizer_states_in_checkpoint(advice_context(Wide(times=1)))


def test_only_applicable_rules_give_advice_in_order(thrice):
    messages = advice.advice(thrice)
    assert len(messages) >= 2 and "3 times" in messages[0]
