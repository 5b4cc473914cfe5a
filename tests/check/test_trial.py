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
