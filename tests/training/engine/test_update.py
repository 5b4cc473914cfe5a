from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import nn

from shoestring.base.errors import RunError, UsageError
from shoestring.training.engine.precision import mixed_precision
from shoestring.training.engine.update import loss_sum_and_weight, update

CPU = torch.device("cpu")


def mean_loss(model, batch):
    return model(batch).square().mean()


def tokens_loss(model, batch):
    """A sum over tokens: microbatches of equal size have different weights."""
    values, mask = batch
    return (model(values).squeeze(-1).square() * mask).sum(), mask.sum()


def run(loss, microbatches, samples, *, precision="fp32", clip_norm=None, model=None):
    torch.manual_seed(0)
    precision_mode = mixed_precision(precision, CPU)
    if precision_mode.scaler:
        # The default initial scale of 65536 is lowered by overflows; these tests make a single update.
        precision_mode = replace(precision_mode, scaler=torch.amp.GradScaler("cpu", init_scale=256.0))
    model = model or nn.Linear(4, 1, dtype=torch.float64 if precision == "fp32" else torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    result = update(
        model,
        optimizer,
        loss,
        microbatches,
        samples=samples,
        mixed_precision=precision_mode,
        clip_norm=clip_norm,
    )
    return model, result


def test_gradient_does_not_depend_on_the_microbatches():
    batch = torch.randn(10, 4, dtype=torch.float64)
    whole, expected = run(mean_loss, [(batch, 10)], 10)
    pieces, result = run(mean_loss, [(batch[:7], 7), (batch[7:], 3)], 10)
    torch.testing.assert_close(pieces.weight, whole.weight)
    torch.testing.assert_close(result.loss, expected.loss)


def test_microbatches_count_by_weight_not_samples():
    values = torch.randn(6, 5, 4, dtype=torch.float64)
    mask = (torch.arange(5) < torch.tensor([5, 1, 3, 0, 2, 4])[:, None]).double()
    whole, expected = run(tokens_loss, [((values, mask), 6)], 6)
    pieces, result = run(tokens_loss, [((values[i : i + 2], mask[i : i + 2]), 2) for i in (0, 2, 4)], 6)
    torch.testing.assert_close(pieces.weight, whole.weight, rtol=1e-7, atol=0)
    torch.testing.assert_close(result.loss, expected.loss)


def test_first_microbatch_may_have_zero_weight():
    values, mask = torch.randn(4, 5, 4, dtype=torch.float64), torch.ones(4, 5, dtype=torch.float64)
    mask[:2] = 0
    whole, _ = run(tokens_loss, [((values, mask), 4)], 4)
    pieces, _ = run(tokens_loss, [((values[:2], mask[:2]), 2), ((values[2:], mask[2:]), 2)], 4)
    torch.testing.assert_close(pieces.weight, whole.weight)


def test_total_weight_of_zero_is_an_error():
    values, mask = torch.randn(2, 5, 4, dtype=torch.float64), torch.zeros(2, 5, dtype=torch.float64)
    with pytest.raises(RunError, match="the total weight of an update's samples is zero"):
        run(tokens_loss, [((values, mask), 2)], 2)


def test_total_gradient_is_clipped_not_each_microbatch():
    batch = 10 * torch.randn(8, 4, dtype=torch.float64)
    whole, expected = run(mean_loss, [(batch, 8)], 8, clip_norm=0.5)
    pieces, result = run(mean_loss, [(batch[:4], 4), (batch[4:], 4)], 8, clip_norm=0.5)
    torch.testing.assert_close(pieces.weight, whole.weight)
    torch.testing.assert_close(result.gradient_norm, expected.gradient_norm)
    assert expected.gradient_norm > 0.5


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_mixed_precision_differs_only_by_rounding(precision):
    torch.manual_seed(1)
    batch, model = torch.randn(8, 4), nn.Linear(4, 1)
    exact, _ = run(mean_loss, [(batch, 8)], 8, model=deepcopy(model))
    mixed, result = run(mean_loss, [(batch[:4], 4), (batch[4:], 4)], 8, precision=precision, model=deepcopy(model))
    assert (exact.weight - model.weight).abs().max() > 0.05
    torch.testing.assert_close(mixed.weight, exact.weight, rtol=0, atol=0.005)
    assert not result.skipped


def test_fp16_clips_the_unscaled_gradient():
    torch.manual_seed(1)
    batch, model = torch.randn(8, 4), nn.Linear(4, 1)
    exact, expected = run(mean_loss, [(batch, 8)], 8, model=deepcopy(model), clip_norm=0.1)
    mixed, result = run(mean_loss, [(batch, 8)], 8, precision="fp16", model=deepcopy(model), clip_norm=0.1)
    torch.testing.assert_close(result.gradient_norm, expected.gradient_norm, rtol=0.01, atol=0)
    torch.testing.assert_close(mixed.weight, exact.weight, rtol=0, atol=1e-4)


def test_fp16_overflow_is_skipped_and_counted():
    model = nn.Linear(4, 1)
    before = model.weight.clone()
    _, result = run(
        lambda model, batch: model(batch).sum() * 1e6, [(torch.ones(2, 4), 2)], 2, precision="fp16", model=model
    )
    assert result.skipped
    assert torch.equal(model.weight, before)


def test_update_clears_gradients():
    model, _ = run(mean_loss, [(torch.randn(2, 4, dtype=torch.float64), 2)], 2)
    assert model.weight.grad is None


def test_mean_is_multiplied_and_pair_is_unchanged():
    assert [float(value) for value in loss_sum_and_weight(torch.tensor(0.5), 8)] == [4, 8]
    assert [float(value) for value in loss_sum_and_weight((torch.tensor(0.5), 3), 8)] == [0.5, 3]
    assert [float(value) for value in loss_sum_and_weight((torch.tensor([0.5]), torch.tensor(3)), 8)] == [0.5, 3]


@pytest.mark.parametrize(
    "value", [torch.zeros(3), None, 0.5, (torch.zeros(1), torch.zeros(2)), {"loss": torch.zeros(1)}]
)
def test_invalid_loss_is_rejected(value):
    with pytest.raises(UsageError, match=r"loss\(\) returned"):
        loss_sum_and_weight(value, 8)
