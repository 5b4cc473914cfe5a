"""The ONNX graph of the network, and the filter that it has instead of the one for training."""

import pytest
import torch

from shoestring.runs.export import onnx
from shoestring_recipes.cloud import Cloud, network
from shoestring_recipes.cloud.filtering import dynamic_filter, unrolled_filter


def test_unrolled_filter_has_the_values_of_the_filter():
    torch.manual_seed(0)
    features, hidden = torch.randn(3, 4, 6, 5), torch.randn(3, 7, 6, 5)
    weight, bias = torch.randn(4 * 25, 7), torch.randn(4 * 25)
    expected = dynamic_filter(features, hidden, weight, bias, 0.1)
    assert torch.allclose(unrolled_filter(features, hidden, weight, bias, 0.1), expected, atol=1e-4)


@pytest.mark.slow
def test_graph_has_any_number_of_samples(tmp_path):
    torch.manual_seed(0)
    shape = network.Shape(blocks=1, layers=2, channels=8, growth=8, heads=2, upscaled=16)
    model = network.CloudRemoval(shape, crop=32).eval()
    batches = [tuple(torch.rand(size, bands, 32, 32) for bands in (13, 2, 13)) for size in (1, 2, 3)]
    with torch.no_grad():
        compared = onnx.write(Cloud().onnx(model), tmp_path, batches).compared
        assert torch.equal(model(*batches[2][:2]), compared[2][0])  # the model is not changed
    assert [len(actual) for _, actual in compared] == [1, 2, 3]
    assert all(torch.allclose(expected, actual, atol=1e-5) for expected, actual in compared)
