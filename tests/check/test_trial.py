"""The child process of a trial, run in this process."""

from shoestring.check import trial
from shoestring.settings import Settings
from tests.engine.fake_cuda_graphs import use_fake_cuda_graphs


def test_trial_uses_cuda_graphs_if_requested(monkeypatch):
    stand_ins, stages = use_fake_cuda_graphs(monkeypatch), []
    settings = Settings(compile="graphs", checkpointing="no", precision="fp32", micro_batch=4)
    request = {
        "reference": "temporal",
        "options": {"architecture": "mlp", "size": "tiny", "dropout": 0.0},
        "settings": settings.json(),
        "microbatches": [4, 4],
        "device": "cpu",
    }
    trial.run_trial(request, stages.append)
    assert stages[-1]["stage"] == "done", stages
    assert stand_ins[0].replays


STAGED = """
import torch
from torch import nn

class Mine:
    stages = ("a", "b")
    def stage(self, update, updates_per_epoch, total_updates): return self.stages[update % 2]
    def model(self): return nn.ModuleDict(dict(a=nn.Linear(4, 1), b=nn.Linear(4, 1)))
    def batch(self, size): return torch.ones(size, 4)
    def loss(self, model, batch, stage):
        assert all(parameter.requires_grad for parameter in model.parameters())
        model["b" if stage == "a" else "a"].requires_grad_(False)
        return model[stage](batch).square().mean()
"""


def test_parameters_that_a_stage_freezes_are_trained_in_the_next_one(tmp_path):
    (tmp_path / "mine.py").write_text(STAGED)
    stages = []
    request = {
        "reference": str(tmp_path / "mine.py"),
        "options": {},
        "settings": Settings(checkpointing="no", precision="fp32", micro_batch=4).json(),
        "microbatches": [4],
        "device": "cpu",
    }
    trial.run_trial(request, stages.append)
    assert [stage["stage"] for stage in stages] == ["model", *["update"] * 4, "done"], stages
