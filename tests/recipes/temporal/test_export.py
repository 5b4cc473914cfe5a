"""The ONNX graph of each network."""

import pytest
import torch

from shoestring.runs.export import onnx
from shoestring_recipes.temporal import Options, Temporal


@pytest.mark.slow
def test_graph_has_the_outputs_of_the_network(tmp_path):
    recipe = Temporal(Options(size="tiny", architecture="ensemble"))  # it contains all networks
    torch.manual_seed(0)
    model = recipe.model().eval()
    batches = [(torch.randn(size, 20, 29), torch.zeros(size)) for size in (1, 2, 3)]
    with torch.no_grad():
        compared = onnx.write(recipe.onnx(model), tmp_path, batches).compared
    assert [len(expected) for expected, _ in compared] == [1, 2, 3]
    assert all(torch.allclose(expected, actual, atol=1e-5) for expected, actual in compared)
    assert not any(torch.equal(compared[0][0], row[None]) for row in compared[1][0])
