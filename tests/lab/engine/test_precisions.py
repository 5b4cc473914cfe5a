"""Training in each precision on a GPU gives the CPU's values, as near as the precision's own rounding allows."""

import pytest
from torch.optim import SGD

from tests.lab.engine.networks import Classifier
from tests.lab.engine.trained import CPU, largest_difference, on_both, train
from tests.overflowing import Tokens

RECIPES = [
    ("dense", {}),
    ("dense", {"ema": 0.5}),
    ("convolutional", {}),
    ("convolutional", {"memory_format": "channels_last", "cudnn_benchmark": True}),
    ("recurrent", {}),
    ("attending", {}),
]
TOLERANCES = {"dense": 0, "convolutional": 0, "recurrent": 0, "attending": 5e-6}
"""In fp32. Attention on a GPU is computed by another operator than on the CPU."""


@pytest.mark.parametrize(("network", "values"), RECIPES, ids=str)
def test_fp32_has_the_values_of_the_cpu(tmp_path, network, values):
    gpu, cpu = on_both(tmp_path, Classifier(network=network), values)
    assert len(gpu.updates) == 6 and len(gpu.evaluations) == 2
    assert gpu.losses == pytest.approx(cpu.losses, rel=0, abs=min(TOLERANCES[network], 5e-7))
    assert [update["norm"] for update in gpu.updates] == pytest.approx([update["norm"] for update in cpu.updates])
    assert largest_difference(gpu, cpu) <= TOLERANCES[network]


@pytest.mark.parametrize(("network", "values"), RECIPES, ids=str)
def test_fp16_differs_from_fp32_by_its_rounding(tmp_path, network, values):
    recipe = Classifier(network=network, optimizer=lambda model: SGD(model.parameters(), lr=0.1, momentum=0.9))
    gpu = train(tmp_path / "fp16", recipe, {**values, "precision": "fp16"})
    cpu = train(tmp_path / "fp32", recipe, values, device=CPU)
    assert gpu.losses == pytest.approx(cpu.losses, rel=0, abs=1e-3)
    assert 0 < largest_difference(gpu, cpu) < 5e-3


def test_modules_that_overflow_in_fp16_compute_in_fp32(tmp_path):
    gpu = train(tmp_path / "fp16", Tokens(), {"precision": "fp16", "micro_batch": 2})
    cpu = train(tmp_path / "fp32", Tokens(), {"micro_batch": 2}, device=CPU)
    assert gpu.state["environment"]["fp32_modules"] == "layers.1.mlp.down_proj"
    assert gpu.losses == pytest.approx(cpu.losses, rel=1e-2)
    (note,) = [event["message"] for event in gpu.of_kind("note") if "fp16" in event["message"]]
    assert note.startswith("the model overflows in fp16: the output of layers.1.mlp.down_proj is not finite")
