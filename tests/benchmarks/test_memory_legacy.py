"""Training as before PyTorch 1.11: the same gradients, with what such versions kept in memory."""

from __future__ import annotations

import pytest
import torch
from benchmarks.memory import legacy
from torch.nn import functional


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"notes": "AWS; NGC PyTorch 20.03; cudnn.benchmark"}, True),
        ({"notes": "", "other_versions": "torch 1.10 (cu113)"}, True),
        ({"notes": "torch 1.13.1", "source": "someone/else#log"}, False),
        ({"notes": "torch 2.10.0+cu128"}, False),
        ({"source": "stanford-futuredata/gavel#throughputs"}, True),
        ({"source": "huggingface/transformers#docs/source/en/perf_train_gpu_one.mdx"}, True),
    ],
)
def test_old_versions_are_recognized(row: dict[str, str], expected: bool) -> None:
    assert legacy.is_legacy(row) is expected


@pytest.mark.parametrize("microbatches", [1, 2])
def test_kept_gradients_train_as_dropped_ones(microbatches: int) -> None:
    def train_weight(kept: bool) -> tuple[torch.Tensor, set[int]]:
        model = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.ones_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if kept:
            legacy.keep_gradients(model, optimizer)
        addresses = set()
        for number in range(3):
            optimizer.zero_grad()
            for _ in range(microbatches):
                model(torch.full((1, 2), 1.0 + number)).sum().backward()
            assert model.weight.grad is not None
            addresses.add(model.weight.grad.data_ptr())
            optimizer.step()
        return model.weight.detach(), addresses

    (kept, addresses), (dropped, _) = train_weight(True), train_weight(False)
    assert torch.equal(kept, dropped)
    assert len(addresses) == 1


def test_attention_keeps_the_input_of_softmax() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, 4, 5, requires_grad=True) for _ in range(3))
    mask = torch.zeros(2, 1, 4, 4).masked_fill_(torch.ones(4, 4).triu(1).bool(), float("-inf"))
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):  # type: ignore[func-returns-value]
        attended, shares = legacy.attention(torch.nn.Identity().eval(), query, key, value, mask, scaling=0.5)
    expected = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.5)
    assert torch.allclose(attended, expected.transpose(1, 2), atol=1e-6)
    scores = torch.matmul(query, key.transpose(2, 3)) * 0.5 + mask
    assert any(x.shape == scores.shape and torch.equal(x, scores) for x in saved)
    attended.sum().backward()
    assert value.grad is not None and shares.sum().item() == pytest.approx(2 * 3 * 4)
