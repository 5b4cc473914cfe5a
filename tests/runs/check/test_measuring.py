"""What the attempts at updates of a recipe that cannot be traced show."""

import pytest

from shoestring.base.errors import RunError
from shoestring.base.settings import Settings
from shoestring.recipe.finding import load
from shoestring.runs.check import measuring


def error(message):
    return {"stage": "error", "micro_batch": 2, "message": message, "problems": [], "hint": ""}


@pytest.fixture
def measure(monkeypatch):
    def run(*stages):
        monkeypatch.setattr(measuring, "run_child", lambda *_: (stages, ""))
        return measuring.measure(load("temporal", {"size": "tiny"}), Settings(micro_batch=2), "cpu")

    return run


def test_reason_says_that_samples_of_the_data_were_tried(measure):
    size = {"stage": "size", "micro_batch": 2, "bytes": 1, "seconds": 1.0}
    assert "data()" not in measure(error("too few"), size).reason
    assert (
        "batch(size) fails: the weight is zero" in measure(error("the weight is zero"), {"stage": "data"}, size).reason
    )
    full = measure(error("the weight is zero"), {"stage": "data"}, {"stage": "full", "micro_batch": 2, "message": "no"})
    assert full.reason.startswith("not measured: no")  # the error of batch(size) does not end the run
    with pytest.raises(RunError, match="data also fails"):
        measure(error("the weight is zero"), {"stage": "data"}, error("the data also fails"))
