"""TF32 on a GPU is allowed in every loss of a run with the setting and in no other, and is part of the run's bits.

The simulator does not round as tensor cores do: what is tested is where PyTorch is told to use them.
"""

from dataclasses import dataclass, field

import pytest
import torch

from shoestring.base.errors import UsageError
from tests.lab.engine.networks import Classifier
from tests.lab.engine.trained import assert_same_bits, train

TF32 = {"tf32": True}


@dataclass(kw_only=True)
class Observing(Classifier):
    """Records whether TF32 is allowed when a loss is computed."""

    network: str = "attending"
    share: float = 0.3
    allowed: list[bool] = field(default_factory=list)

    def loss(self, model, batch):
        self.allowed.append(torch.backends.cuda.matmul.allow_tf32)
        return super().loss(model, batch)


@pytest.mark.parametrize(
    "values", [{}, {"micro_batch": 2, "compile": "graphs"}, {"offload": "parameters", "checkpointing": "full"}], ids=str
)
def test_tf32_is_allowed_in_runs_with_the_setting_alone(tmp_path, values):
    with_tf32, without = Observing(), Observing()
    first = train(tmp_path / "tf32", with_tf32, {**values, **TF32})
    second = train(tmp_path / "fp32", without, values)
    assert {*with_tf32.allowed} == {True} and {*without.allowed} == {False}
    assert first.state["environment"]["tf32"] is True and second.state["environment"]["tf32"] is None
    assert_same_bits(first, second, state=False)


@pytest.mark.parametrize("another_between", [False, True])
def test_a_run_in_tf32_continues_in_the_same_bits_and_not_without_it(tmp_path, another_between):
    straight = train(tmp_path / "straight", Observing(), TF32)
    train(tmp_path / "run", Observing(), TF32, stop="limit", at=7, status="paused")
    if another_between:  # a notebook that trains something else leaves nothing of its setting
        train(tmp_path / "other", Observing(), {})
    with pytest.raises(UsageError, match="not continue bit for bit") as raised:
        train(tmp_path / "run", Observing(), {})
    assert "tf32: saved with True, now None" in raised.value.problems
    recipe = Observing()
    continued = train(tmp_path / "run", recipe, TF32)
    assert {*recipe.allowed} == {True}
    assert_same_bits(continued, straight)
