"""Chunked cross-entropy equals torch's, and stores the logits of one chunk at most."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from shoestring.base.settings import Settings
from shoestring.hardware.catalog import DEVICES
from shoestring.planning.trace import Tracer
from shoestring.planning.trace.record import Alloc, Free
from shoestring.recipe import finding
from shoestring.techniques.loss import IGNORED, chunked_cross_entropy, chunked_token_losses

TOKENS, WIDTH, WORDS = 13, 6, 17


def draw_tensors(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(TOKENS, WIDTH), torch.randn(WORDS, WIDTH), torch.randn(WORDS)
    return [tensor.to(dtype).requires_grad_() for tensor in (hidden, weight, bias)]


def make_labels() -> Tensor:
    labels = torch.arange(TOKENS) % WORDS
    labels[3] = labels[12] = IGNORED
    return labels


@pytest.mark.parametrize("chunk", [1, 4, 13, 100])
@pytest.mark.parametrize("with_bias", [True, False])
def test_sum_and_gradients_equal_those_of_torch(chunk: int, with_bias: bool) -> None:
    actual, expected = draw_tensors(), draw_tensors()
    total, weight = chunked_cross_entropy(*actual[:2], make_labels(), chunk, actual[2] if with_bias else None)
    logits = functional.linear(*expected[:2], expected[2] if with_bias else None)
    reference = functional.cross_entropy(logits, make_labels(), ignore_index=IGNORED, reduction="sum")
    assert weight == TOKENS - 2
    torch.testing.assert_close(total, reference, rtol=0, atol=1e-6)
    (total * 3).backward()
    (reference * 3).backward()
    for tensor, reference_tensor in zip(actual[: 2 + with_bias], expected, strict=False):
        torch.testing.assert_close(tensor.grad, reference_tensor.grad, rtol=0, atol=1e-6)


def test_frozen_weight_gets_no_gradient() -> None:
    hidden, weight, _ = draw_tensors()
    weight.requires_grad_(False)
    chunked_cross_entropy(hidden, weight, make_labels(), 4)[0].backward()
    assert weight.grad is None and hidden.grad is not None


def test_logarithms_are_in_fp32_under_autocast() -> None:
    actual, expected = draw_tensors(torch.float32), draw_tensors(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total, _ = chunked_cross_entropy(*actual[:2], make_labels(), TOKENS)
        logits = functional.linear(*expected[:2])
        reference = functional.cross_entropy(logits.float(), make_labels(), ignore_index=IGNORED, reduction="sum")
    assert logits.dtype == torch.bfloat16 and total.dtype == torch.float32
    torch.testing.assert_close(total, reference)
    total.backward()
    reference.backward()
    torch.testing.assert_close(actual[1].grad, expected[1].grad, rtol=2e-2, atol=1e-2)


class Head:
    """256 tokens of width 32, a vocabulary of 8192: all logits are 8 MiB in fp32, those of 16 tokens 512 KiB."""

    effective_batch = 256
    chunk = 16

    def model(self) -> nn.Module:
        return nn.Linear(32, 8192, bias=False)

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(size, 32), torch.zeros(size, dtype=torch.int64)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return chunked_cross_entropy(batch[0], model.weight, batch[1], self.chunk)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)


def test_peak_memory_has_the_logits_of_one_chunk() -> None:
    logits, weight, batch = 4 * 16 * 8192, 4 * 32 * 8192, 256 * (4 * 32 + 8)
    with Tracer(finding.find(Head())) as tracer:
        trace = tracer.trace(Settings(micro_batch=256, precision="fp32"), accumulate=1, device=DEVICES["t4"])
    live = peak = 0
    for event in trace.events:
        if isinstance(event, Alloc | Free):
            size = trace.storages[event.storage].bytes
            live += size if isinstance(event, Alloc) else -size
            peak = max(peak, live)
    # Weight, its gradient, the logits of one chunk, and some numbers for each token.
    expected = 2 * weight + logits + batch
    assert expected <= peak < expected + 4096


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_losses_and_gradients_of_each_token_equal_those_of_torch(chunk: int) -> None:
    actual, expected = draw_tensors(), draw_tensors()
    losses = chunked_token_losses(*actual[:2], make_labels(), chunk, actual[2])
    logits = functional.linear(*expected[:2], expected[2])
    reference = functional.cross_entropy(logits, make_labels(), ignore_index=IGNORED, reduction="none")
    torch.testing.assert_close(losses, reference, rtol=0, atol=1e-9)
    scales = torch.linspace(-1, 2, TOKENS, dtype=torch.float64)
    (losses * scales).sum().backward()
    (reference * scales).sum().backward()
    for tensor, reference_tensor in zip(actual, expected, strict=True):
        torch.testing.assert_close(tensor.grad, reference_tensor.grad, rtol=0, atol=1e-9)
