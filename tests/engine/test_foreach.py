"""Many tensors at once, or one by one where torch has no such function: the same bits."""

import math

import pytest
import torch

from shoestring.engine import foreach


@pytest.fixture(params=["together", "one by one"], autouse=True)
def way(request, monkeypatch):
    if request.param == "one by one":
        for name in ("_foreach_copy_", "_foreach_mul_", "_foreach_norm"):
            monkeypatch.delattr(torch, name)


def tensors():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in ((3, 4), (), (1000,))]


def test_each_is_copied():
    source, to = tensors(), [torch.zeros_like(each) for each in tensors()]
    foreach.copy(to, source)
    assert all(torch.equal(a, b) for a, b in zip(to, source, strict=True))


def test_each_is_multiplied():
    changed = tensors()
    foreach.multiply(changed, 0.3)
    assert all(torch.equal(a, b * 0.3) for a, b in zip(changed, tensors(), strict=True))


@pytest.mark.parametrize("order", [2, math.inf])
def test_each_has_its_norm(order):
    found = foreach.norms(tensors(), order)
    assert all(torch.equal(a, torch.linalg.vector_norm(b, order)) for a, b in zip(found, tensors(), strict=True))
