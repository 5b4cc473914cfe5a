"""The real command on several GPUs, some of whose processes are killed, stopped or hang."""

import json

import pytest

from tests.sessions import final_checkpoint

RECIPE = '''
import os, signal
from pathlib import Path
import torch
from torch import nn

RANK = int(os.environ.get("RANK", "0"))

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.LSTM(8, 16, 2, batch_first=True, dropout=0.2)
        self.dropout, self.head = nn.Dropout(0.2), nn.Linear(16, 3)

    def forward(self, inputs):
        return self.head(self.dropout(self.layers(inputs)[0][:, -1]))

class Recurrent:
    """A network whose processes send themselves signals, each once in a run."""
    epochs, effective_batch, learning_rate, clip_norm = 4, 32, 0.05, 0.5
    losses = 0

    def model(self):
        return Network()

    def batch(self, size):
        return torch.zeros(size, 5, 8), torch.zeros(size, dtype=torch.int64)

    def loss(self, model, batch):
        inputs, classes = batch
        if model.training and inputs.is_cuda:
            Recurrent.losses += 1
            for event in filter(None, os.environ.get("EVENTS", "").split(",")):
                rank, at, name = event.split(":")
                marker = Path(event)
                if (RANK, Recurrent.losses) == (int(rank), int(at)) and not marker.exists():
                    marker.touch()
                    os.kill(os.getpid(), signal.Signals[name])
        return nn.functional.cross_entropy(model(inputs), classes)

    def data(self):
        inputs = torch.randn(128, 5, 8, generator=torch.Generator().manual_seed(0))
        classes = (inputs.mean(dim=(1, 2)) > 0).long()
        whole = torch.utils.data.TensorDataset(inputs, classes)
        return {"train": whole, "validation": torch.utils.data.Subset(whole, range(20))}
'''


def train(run_simulated, folder, name, gpus, *, sent="", **values):
    """Run one session with the real command, and return the run's directory. `sent` is "RANK:LOSS:SIGNAL,..."."""
    (folder / "recurrent.py").write_text(RECIPE)
    settings = {
        "gpus": gpus,
        "precision": "fp16",
        "micro_batch": 16,
        "save_every_updates": 2,
        "save_every_seconds": 1e4,
    }
    settings |= {"logical_shards": 2, "optimizer_kernel": "foreach", "sharding": "ddp"} | values
    arguments = [argument for item in settings.items() for argument in ("--set", "{}={}".format(*item))]
    command = ["-m", "shoestring", "train", "recurrent.py", "--run", name, "--no-probe", *arguments]
    run_simulated(command, on="kaggle-t4x2", EVENTS=sent)
    return folder / name


def events(run, kind):
    lines = (run / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


@pytest.mark.slow
def test_run_whose_processes_are_killed_and_stopped_ends_in_the_same_bits(run_simulated, tmp_path):
    """Also with another number of GPUs in the session that follows."""
    straight = train(run_simulated, tmp_path, "straight", 1)
    disturbed = train(run_simulated, tmp_path, "disturbed", 2, sent="1:5:SIGKILL,0:7:SIGTERM")
    (restart,) = events(disturbed, "restart")
    assert restart["reason"].startswith("process 1 of 2 was ended by SIGKILL") and 0 < restart["update"] <= 8
    assert events(disturbed, "stop")[-1]["update"] < 16
    train(run_simulated, tmp_path, "disturbed", 1)
    assert final_checkpoint(disturbed) == final_checkpoint(straight)
    assert "Tesla T4" in events(disturbed, "session")[0]["device"]


@pytest.mark.slow
def test_recurrent_layers_learn_with_divided_weights_also_after_a_stop(run_simulated, tmp_path):
    """A layer of cuDNN copies its weights to a buffer of its own, which must not be used in later updates."""
    replicas = train(run_simulated, tmp_path, "replicas", 2)
    for _ in range(2):
        divided = train(run_simulated, tmp_path, "divided", 2, sharding="zero3", sent="1:8:SIGTERM")
    expected, losses = (
        [event["metrics"]["loss"] for event in events(run, "evaluation")] for run in (replicas, divided)
    )
    assert losses == pytest.approx(expected, rel=1e-3) and len(expected) == 4
    assert len(events(divided, "session")) == 2


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["zero1", "zero3"])
def test_process_that_hangs_is_lost(run_simulated, tmp_path, sharding):
    """A process that sends no heartbeat for a minute is killed with the others, which wait in a collective."""
    straight = train(run_simulated, tmp_path, "straight", 2, sharding=sharding)
    disturbed = train(run_simulated, tmp_path, "disturbed", 2, sharding=sharding, sent="1:8:SIGSTOP")
    (restart,) = events(disturbed, "restart")
    assert restart["reason"] == "process 1 of 2 gave no sign of life for 1 min 00 s"
    for name in ("model", "optimizer") if sharding == "zero1" else ():
        assert final_checkpoint(disturbed)[name] == final_checkpoint(straight)[name]
    if sharding == "zero3":
        newest = [max((run / "checkpoints").glob("update-*")) for run in (straight, disturbed)]
        files = [{path.name: path.read_bytes() for path in folder.glob("*.safetensors")} for folder in newest]
        assert files[0] == files[1] and len(files[0]) >= 4
