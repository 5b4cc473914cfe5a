"""Operations on many tensors at once, or one by one if torch lacks the function: the same bits."""

import math

import pytest
import torch

from shoestring.training.engine import foreach


@pytest.fixture(params=["batched", "one by one"], autouse=True)
def implementation(request, monkeypatch):
    if request.param == "one by one":
        for name in ("_foreach_add_", "_foreach_copy_", "_foreach_lerp_", "_foreach_mul_", "_foreach_norm"):
            monkeypatch.delattr(torch, name)


def tensors():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in ((3, 4), (), (1000,))]


def test_add():
    changed = tensors()
    foreach.add(changed, tensors())
    assert all(torch.equal(a, b + b) for a, b in zip(changed, tensors(), strict=True))


def test_copy():
    source, destination = tensors(), [torch.zeros_like(tensor) for tensor in tensors()]
    foreach.copy(destination, source)
    assert all(torch.equal(a, b) for a, b in zip(destination, source, strict=True))


def test_lerp():
    changed, ends = tensors(), [tensor.bfloat16() for tensor in tensors()]
    ends[0] = ends[0].float()
    foreach.lerp(changed, ends, 0.3)
    assert all(torch.equal(a, b.lerp(c.float(), 0.3)) for a, b, c in zip(changed, tensors(), ends, strict=True))


def test_multiply():
    changed = tensors()
    foreach.multiply(changed, 0.3)
    assert all(torch.equal(a, b * 0.3) for a, b in zip(changed, tensors(), strict=True))


@pytest.mark.parametrize("order", [2, math.inf])
def test_norms(order):
    results = foreach.norms(tensors(), order)
    assert all(torch.equal(a, torch.linalg.vector_norm(b, order)) for a, b in zip(results, tensors(), strict=True))
