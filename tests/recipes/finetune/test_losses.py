from itertools import pairwise

import numpy
import pytest
import torch
from torch.nn import functional

from shoestring_recipes.finetune.batches import collate, largest, largest_packed
from shoestring_recipes.finetune.losses import mean_token_loss, token_loss
from shoestring_recipes.finetune.samples import Sample
from tests.recipes.finetune.models import build
from tests.recipes.finetune.test_packing import make_samples


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_the_loss_is_that_of_the_learned_tokens(family: str) -> None:
    model, samples = build(family, torch.float64), make_samples()
    total, count = 0.0, 0
    for sample in samples:
        tokens = torch.from_numpy(sample.tokens.astype(numpy.int64))
        logits = model(input_ids=tokens[None], use_cache=False).logits[0].float()
        for place, (_, token) in enumerate(pairwise(tokens)):
            if sample.loss_mask[place + 1]:
                total += float(functional.cross_entropy(logits[place], token).detach())
                count += 1
    for chunk in (None, 3):
        loss, weight = token_loss(model, collate(samples), chunk)
        assert weight == count
        assert float(loss.detach()) == pytest.approx(total, rel=1e-6)


def test_a_frozen_head_has_the_same_gradients_as_a_trained_one() -> None:
    """If the head is frozen, forward computes the gradient of what precedes it."""
    batch = collate(make_samples())
    gradients = []
    for is_frozen in (False, True):
        model = build("llama", torch.float64)
        model.requires_grad_(False)
        model.lm_head.requires_grad_(not is_frozen)
        model.model.layers.requires_grad_(True)
        (2.5 * token_loss(model, batch, 4)[0]).backward()
        gradients.append([parameter.grad for parameter in model.model.layers.parameters()])
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-14)


def test_the_stop_token_is_learned_although_it_is_the_padding_token() -> None:
    sample = Sample(
        tokens=numpy.array([5, 6, 0], numpy.int32), loss_mask=numpy.array([False, True, True]), full_length=3
    )
    batch = collate([sample])
    assert batch["targets"].tolist() == [6, 0]
    assert batch["places"].tolist() == [0, 1]


def test_the_largest_batch_has_the_shapes_of_collated_ones() -> None:
    tokens = numpy.ones(64, numpy.int32)
    loss_mask = numpy.arange(64) > 0
    full = collate([Sample(tokens=tokens, loss_mask=loss_mask, full_length=64)] * 3)
    assert {name: values.shape for name, values in largest(3, 64).items()} == {
        name: values.shape for name, values in full.items()
    }
    assert torch.equal(largest(3, 64)["places"], full["places"])
    assert largest_packed(2, 64)["position_ids"].shape == (2, 64)


def test_the_mean_is_over_tokens_and_not_over_batches() -> None:
    metrics = mean_token_loss([(torch.tensor(2.0), 1.0), (torch.tensor(2.0), 3.0)])
    assert metrics["loss"] == 1.0
    assert metrics["perplexity"] == pytest.approx(2.718281828)
