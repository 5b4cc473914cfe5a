"""What becomes of a failure in work that one process does for all."""

import pytest

from shoestring.base.errors import RunError
from shoestring.training.engine.memory import Failure
from shoestring.training.engine.parallel.ranks import Ranks


@pytest.mark.parametrize("name", ["call_first", "call_in_turn"])
def test_out_of_memory_in_work_for_all_is_the_documented_error(monkeypatch, name):
    monkeypatch.setattr(Ranks, "call", lambda self, act: Failure("GPU 1: CUDA out of memory"))
    with pytest.raises(RunError) as raised:
        getattr(Ranks(), name)(lambda: None)
    assert raised.value.message == "out of memory: GPU 1: CUDA out of memory"
    assert "use a smaller model" in raised.value.hint and raised.value.problems and raised.value.status == 1
