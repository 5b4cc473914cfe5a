"""bf16 on a GPU that has it; a T4, which only emulates it, is refused."""

import os
from pathlib import Path

import pytest

from shoestring.base.errors import UsageError
from tests.lab.engine.networks import Classifier
from tests.lab.engine.trained import train

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "checks", [["values"], pytest.param(["graphs_and_stops", "techniques", "weights"], marks=pytest.mark.slow)], ids=str
)
def test_bf16_on_a_gpu_that_has_it(run_simulated, tmp_path, checks):
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    arguments = ["-m", "tests.lab.engine.bf16", str(tmp_path), *checks]
    assert run_simulated(arguments, on="l4", PYTHONPATH=path).lines == checks


def test_a_gpu_without_bf16_is_refused(tmp_path):
    with pytest.raises(UsageError, match="Tesla T4 has no bf16 units") as raised:
        train(tmp_path, Classifier(network="dense"), {"precision": "bf16"})
    assert raised.value.hint == "set precision=fp16"
