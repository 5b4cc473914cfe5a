"""The child's side of a trial, in this process."""

from shoestring.check import trial
from shoestring.settings import Settings
from tests.engine.stand_in import instead_of_cuda


def test_what_is_asked_for_as_graphs_is_tried_as_graphs(monkeypatch):
    stand_ins, told = instead_of_cuda(monkeypatch), []
    settings = Settings(compile="graphs", checkpointing="no", precision="fp32", micro_batch=4)
    question = {
        "reference": "temporal",
        "options": {"architecture": "mlp", "size": "tiny", "dropout": 0.0},
        "settings": settings.json(),
        "microbatches": [4, 4],
        "device": "cpu",
    }
    trial.try_out(question, told.append)
    assert told[-1]["stage"] == "done", told
    assert stand_ins[0].replays
