"""What saves memory while training: the same bits, and a change of it between sessions is no secret."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from shoestring.errors import QuestionError
from shoestring.recipe import live
from shoestring.settings import Settings
from shoestring.techniques.eightbit import BlockwiseAdamW
from shoestring.train.state import build
from tests.sessions import light_bits, session


class Stacked:
    """Three blocks with dropout and BatchNorm, which a forward too many would show."""

    epochs = 2
    effective_batch = 8

    def model(self):
        return nn.Sequential(
            nn.Linear(3, 4),
            *(
                nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Sequential(nn.Tanh(), nn.Dropout(0.3)))
                for _ in range(3)
            ),
        )

    def batch(self, size):
        return torch.zeros(size, 3)

    def loss(self, model, batch):
        return model(batch[0]).square().mean()

    def data(self):
        return TensorDataset(torch.randn(24, 3, generator=torch.Generator().manual_seed(0)))


def test_activations_computed_again_end_in_the_same_bits(tmp_path):
    for name, setting in (("no", "no"), ("full", "full"), ("stopped", "2")):
        values = {"micro_batch": 4, "checkpointing": setting}
        if name == "stopped":
            session(Stacked(), tmp_path / name, values, stop="limit", at=3)
        session(Stacked(), tmp_path / name, values)
    plain, full, stopped = (light_bits(tmp_path / name / "light") for name in ("no", "full", "stopped"))
    assert plain == full == stopped


def test_what_a_run_was_begun_with_is_held_against_what_it_goes_on_with(tmp_path):
    session(Stacked(), tmp_path, {"checkpointing": "no"}, stop="limit", at=2)
    changed = {"checkpointing": "full", "optimizer_kernel": "fused", "cudnn_benchmark": True}
    with pytest.raises(QuestionError) as refused:
        session(Stacked(), tmp_path, changed)
    assert [problem.partition(":")[0] for problem in refused.value.problems] == sorted(changed)
    assert session(Stacked(), tmp_path, {}).status == "finished"  # open and "no" are one


def test_the_engine_takes_the_kernel_that_was_chosen_and_the_blocks(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    settings = Settings(
        micro_batch=8, precision="fp32", checkpointing="2", optimizer_kernel="for-loop", cudnn_benchmark=True
    )
    state = build(live(Stacked()), settings, torch.device("cpu"))
    assert ["forward" in vars(block) for block in state.model] == [False, True, True, False]
    assert state.optimizer.param_groups[0]["foreach"] is False
    assert torch.backends.cudnn.benchmark


def test_what_can_only_be_estimated_is_refused_before_the_first_update():
    class Small(Stacked):
        def optimizer(self, model):
            return BlockwiseAdamW(model.parameters())

    with pytest.raises(QuestionError, match="estimated, not trained"):
        build(live(Small()), Settings(micro_batch=8, precision="fp32"), torch.device("cpu"))
