"""Shoestring's own engine on the simulated GPU: a killed run, and a genuine out-of-memory."""

import json

from tests.sessions import final_checkpoint

RECIPE = '''
import os, signal
import torch
from torch import nn

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.LSTM(8, 16, 2, batch_first=True, dropout=0.2)
        self.dropout, self.head = nn.Dropout(0.2), nn.Linear(16, 3)

    def forward(self, inputs):
        return self.head(self.dropout(self.layers(inputs)[0][:, -1]))

class Recurrent:
    """A network whose process may be killed while it trains, or needs more memory for each sample."""
    epochs, effective_batch, learning_rate, clip_norm = 4, 32, 0.05, 0.5
    losses = 0

    def model(self):
        return Network()

    def batch(self, size):
        return torch.zeros(size, 5, 8), torch.zeros(size, dtype=torch.int64)

    def loss(self, model, batch):
        inputs, classes = batch
        held = []
        if model.training and inputs.is_cuda:
            Recurrent.losses += 1
            if str(Recurrent.losses) == os.environ.get("KILL_AT"):
                os.kill(os.getpid(), signal.SIGKILL)
            for _ in inputs if os.environ.get("MIB_PER_SAMPLE") else ():
                size = int(os.environ["MIB_PER_SAMPLE"]) * 2**20
                held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        return nn.functional.cross_entropy(model(inputs), classes)

    def data(self):
        inputs = torch.randn(128, 5, 8, generator=torch.Generator().manual_seed(0))
        return {"train": torch.utils.data.TensorDataset(inputs, (inputs.mean(dim=(1, 2)) > 0).long())}
'''
BITS = ("name", "model", "optimizer", "metrics")
"""What does not say which microbatch was asked for."""


def train(run_simulated, tmp_path, name, micro_batch, *, status=0, **variables):
    """Run one session in fp16 with the real command, and return the run's directory."""
    (tmp_path / "recurrent.py").write_text(RECIPE)
    values = {"precision": "fp16", "micro_batch": micro_batch, "save_every_updates": 3}
    settings = [argument for item in values.items() for argument in ("--set", "{}={}".format(*item))]
    command = ["-m", "shoestring", "train", "recurrent.py", "--run", name, "--no-probe", *settings]
    run_simulated(command, status=status, **variables)
    return tmp_path / name


def events(run, kind):
    """Return the run's events of a kind."""
    lines = (run / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def test_run_that_was_killed_in_fp16_ends_in_the_same_bits(run_simulated, tmp_path):
    straight = train(run_simulated, tmp_path, "straight", 16)
    train(run_simulated, tmp_path, "killed", 16, status=1, KILL_AT="22")
    killed = train(run_simulated, tmp_path, "killed", 16)
    first, second = events(killed, "session")
    assert "Tesla T4" in second["device"] and second["precision"] == "fp16"
    assert first["update"] == 0 and 0 < second["update"] <= 10
    assert final_checkpoint(killed) == final_checkpoint(straight)


def test_out_of_memory_halves_the_microbatch_and_keeps_the_bits(run_simulated, tmp_path):
    small = train(run_simulated, tmp_path, "small", 16)
    halved = train(run_simulated, tmp_path, "halved", 32, MIB_PER_SAMPLE="600")
    (event,) = events(halved, "oom")
    assert event["done"] == "microbatch 16" and "Tried to allocate 600.00 MiB" in event["failure"]
    assert {progress["samples"] // progress["updates"] for progress in events(halved, "progress")} == {32}
    expected, found = final_checkpoint(small), final_checkpoint(halved)
    assert [found[name] for name in BITS] == [expected[name] for name in BITS]
