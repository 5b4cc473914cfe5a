"""Packed rows give what their samples give alone: logits, losses and gradients."""

from typing import Any

import numpy
import pytest
import torch

from shoestring_recipes.finetune.batches import Batch, collate
from shoestring_recipes.finetune.losses import token_loss
from shoestring_recipes.finetune.samples import Sample
from tests.recipes.finetune.models import FAMILIES, VOCABULARY, build

LENGTHS = (11, 5, 9, 14, 3)
ROWS = ((0, 1), (2, 4), (3,))
IN_FP32 = ("gemma2", "gemma3_text")
"""Families that compute norms and probabilities in fp32 whatever the type of the weights."""


def make_samples(seed: int = 0) -> list[Sample]:
    draw = numpy.random.default_rng(seed)
    return [
        Sample(
            tokens=draw.integers(1, VOCABULARY, length).astype(numpy.int32),
            loss_mask=draw.random(length) < 0.6,
            full_length=length,
        )
        for length in LENGTHS
    ]


def gradients(model: Any, batches: list[Batch]) -> tuple[float, dict[str, torch.Tensor]]:
    model.zero_grad()
    total = 0.0
    for batch in batches:
        loss, _ = token_loss(model, batch, 4)
        loss.backward()
        total += float(loss.detach())
    return total, {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def compare(family: str, dtype: torch.dtype) -> tuple[float, float]:
    """Return the relative differences of the loss and of the gradients between packed rows and single samples."""
    model, samples = build(family, dtype), make_samples()
    alone, expected = gradients(model, [collate([sample]) for sample in samples])
    packed, actual = gradients(model, [collate([[samples[index] for index in row] for row in ROWS])])
    largest = max(float(value.abs().max()) for value in expected.values())
    difference = max(float((actual[name] - expected[name]).abs().max()) for name in expected)
    return abs(packed - alone) / abs(alone), difference / largest


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_equals_single_samples(family: str) -> None:
    for dtype, tolerance in ((torch.float64, 1e-6 if family in IN_FP32 else 1e-10), (torch.float32, 1e-5)):
        loss, gradient = compare(family, dtype)
        assert loss <= tolerance and gradient <= tolerance, (dtype, loss, gradient)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_a_packed_row(family: str) -> None:
    model, samples = build(family, torch.float64), make_samples()
    batch = collate([[samples[index] for index in row] for row in ROWS])
    with torch.no_grad():
        packed = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False).logits
        for row, members in zip(packed, ROWS, strict=True):
            start = 0
            for index in members:
                tokens = torch.from_numpy(samples[index].tokens.astype(numpy.int64))[None]
                expected = model(input_ids=tokens, use_cache=False).logits[0]
                torch.testing.assert_close(
                    row[start : start + len(tokens[0])], expected, rtol=0, atol=1e-7 if family in IN_FP32 else 1e-10
                )
                start += len(tokens[0])


def test_a_missing_mask_would_be_noticed() -> None:
    """Without positions that begin anew, attention looks into the sample before: the comparison must see it."""
    model, samples = build("llama", torch.float64), make_samples()
    batch = collate([[samples[0], samples[1]]])
    right = float(token_loss(model, batch, None)[0].detach())
    leaking = {name: values for name, values in batch.items() if name != "position_ids"}
    assert abs(float(token_loss(model, leaking, None)[0].detach()) - right) > 1e-4 * right
    # With a cache, which the recipe switches off, transformers does not separate samples either.
    logits = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=True).logits
    alone = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False).logits
    assert not torch.allclose(logits, alone, atol=1e-6)
