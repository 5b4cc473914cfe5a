"""Training does not depend on the processes that fetch data, on its location or on the grouping into microbatches."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from shoestring.base.errors import UsageError
from shoestring.training.data import sequential
from shoestring.training.data.loading import Loader
from shoestring.training.data.order import DataOrder
from shoestring.training.data.padding import pad_batch
from shoestring.training.data.shards import Shards
from shoestring.training.engine.precision import mixed_precision
from shoestring.training.engine.update import update
from shoestring.training.monitor.events import read
from tests.sessions import final_bits, session
from tests.slow import slow_except

CPU = torch.device("cpu")


class Noisy:
    """A linear regression with random noise in each fetched sample, and a model with dropout."""

    epochs, effective_batch, learning_rate = 3, 10, 0.05

    def model(self):
        return nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.2), nn.Linear(8, 1))

    def batch(self, size):
        return torch.zeros(size, 2), torch.zeros(size, 1)

    def loss(self, model, batch):
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def data(self):
        return {"train": Points(45), "validation": Points(9)}


class Points:
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        inputs = torch.tensor([index / self.samples, 1.0])
        return inputs + 0.1 * torch.randn(2), inputs.sum(dim=0, keepdim=True)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    run = tmp_path_factory.mktemp("straight")
    assert session(Noisy(), run, {"micro_batch": 4, "workers": 0}).status == "finished"
    return final_bits(run)


@pytest.fixture(autouse=True)
def free_processes(monkeypatch):
    """Make starting processes free, so that evaluation uses them even for small data."""
    monkeypatch.setattr(sequential, "_START_SECONDS", 0.0)


@pytest.mark.parametrize("workers", [1, 3])
def test_run_has_the_same_bits_with_any_workers(straight, workers, tmp_path):
    session(Noisy(), tmp_path, {"micro_batch": 4, "workers": workers})
    assert final_bits(tmp_path) == straight
    progress = [event for event in read(tmp_path / "events.jsonl") if event["event"] == "progress"]
    assert progress and all(event["workers"] == workers and event["waiting_seconds"] >= 0 for event in progress)


def test_sessions_may_have_different_workers(straight, tmp_path):
    for workers, loss_count in ((3, 8), (0, 9), (1, 0)):
        session(
            Noisy(), tmp_path, {"micro_batch": 4, "workers": workers}, stop="limit" if loss_count else "", at=loss_count
        )
    assert final_bits(tmp_path) == straight


class RecordingProcesses(Noisy):
    """Writes the id of the process that fetches each validation sample to `file`."""

    def __init__(self, file):
        self.file = file

    def data(self):
        return {"train": Points(20), "validation": self}

    def __len__(self):
        return 9

    def __getitem__(self, index):
        with self.file.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return Points(9)[index]


def test_evaluation_uses_the_workers_of_training(tmp_path):
    session(RecordingProcesses(tmp_path / "pids"), tmp_path / "run", {"micro_batch": 2, "workers": 2, "epochs": 1})
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(set(pids)) == 3 and pids.count(os.getpid()) == 2  # the first batch is fetched in this process


class Streamed(Noisy):
    """Numbers in files that can only be read sequentially, with noise in each sample."""

    mix = 2

    def __init__(self, folder, opened=None):
        self.folder, self.opened = folder, opened
        self.files = sorted(folder.glob("*.txt"))

    def data(self):
        def lines(file):
            if self.opened is not None:
                self.opened.append(file)
            yield from file.read_text().splitlines()

        def decode(line):
            number = float(line)
            return torch.tensor([number, 1.0]) + 0.1 * torch.randn(2), torch.tensor([number + 1])

        counts = [len(file.read_text().splitlines()) for file in self.files]
        return {"train": Shards(self.files, counts, lines, decode=decode, mix=self.mix), "validation": Points(9)}


@pytest.fixture
def stream(tmp_path):
    folder = tmp_path / "stream"
    folder.mkdir()
    for number, samples in enumerate((7, 1, 12, 5, 20)):
        lines = (f"{(number * 20 + position) / 100}" for position in range(samples))
        (folder / f"{number}.txt").write_text("\n".join(lines))
    return folder


def test_shards_give_the_same_bits_after_stops(stream, tmp_path):
    session(Streamed(stream), tmp_path / "straight", {"micro_batch": 4, "workers": 0})
    for workers, loss_count in ((2, 4), (0, 13), (1, 8), (3, 0)):
        values = {"micro_batch": 4, "workers": workers}
        session(Streamed(stream), tmp_path / "run", values, stop="limit" if loss_count else "", at=loss_count)
    assert final_bits(tmp_path / "run") == final_bits(tmp_path / "straight")
    other_mix = Streamed(stream)
    other_mix.mix = 3
    session(other_mix, tmp_path / "mixed", {"micro_batch": 4, "workers": 0})
    assert final_bits(tmp_path / "mixed")["model"] != final_bits(tmp_path / "straight")["model"]


def test_resumed_stream_reads_only_needed_shards(stream, tmp_path):
    values, opened = {"micro_batch": 10, "workers": 0, "epochs": 1}, []
    session(Streamed(stream), tmp_path / "run", values, stop="limit", at=4)  # after four of five updates
    session(Streamed(stream, opened), tmp_path / "run", values)
    assert 0 < len(opened) <= 2 and len(set(opened)) == len(opened)


def test_changed_data_is_an_error_that_names_it(stream, tmp_path):
    session(Streamed(stream), tmp_path / "run", {"workers": 0}, stop="limit", at=2)
    with (stream / "2.txt").open("a") as file:
        file.write("\n0.5")
    with pytest.raises(UsageError) as raised:
        session(Streamed(stream), tmp_path / "run", {"workers": 0})
    assert "data order: saved with 45 samples in 5 shards" in str(raised.value)


class Sentences:
    """Sequences of 1 to 40 tokens, with a loss that is a sum over tokens."""

    def __init__(self, by_length):
        if by_length:
            self.length = lambda dataset, index: len(dataset[index])

    def data(self):
        random = torch.Generator().manual_seed(0)
        lengths = torch.randint(1, 41, (64,), generator=random).tolist()
        return [torch.randint(1, 50, (length,), generator=random) for length in lengths]

    def collate(self, samples):
        return pad_batch(samples, 0)

    def loss(self, model, batch):
        losses = nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten(), reduction="none")
        is_token = batch.flatten() != 0
        return losses[is_token].sum(), is_token.sum()


def train_updates(by_length, micro_batch=8):
    """Return the losses of six updates, the samples of each, and the number of computed tokens."""
    recipe, data = Sentences(by_length), Sentences(False).data()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    order = DataOrder(samples=len(data), effective_batch=32, seed=0)
    losses, samples, tokens = [], [], 0
    with Loader(recipe, data, order, seed=0, device=CPU, workers=0) as loader:
        for number in range(6):
            batches = list(loader.microbatches(number, micro_batch))
            tokens += sum(batch.numel() for batch, _ in batches)
            rows = [tuple(row[row != 0].tolist()) for batch, _ in batches for row in batch]
            samples.append(sorted(rows))
            result = update(
                model,
                optimizer,
                recipe.loss,
                batches,
                samples=32,
                mixed_precision=mixed_precision("fp32", CPU),
                clip_norm=None,
            )
            losses.append(float(result.loss))
    return losses, samples, tokens


def test_sorting_by_length_reduces_padding_only():
    unsorted_losses, unsorted_samples, unsorted_tokens = train_updates(False)
    losses, samples, tokens = train_updates(True)
    assert samples == unsorted_samples
    np.testing.assert_allclose(losses, unsorted_losses, rtol=1e-6)  # sums are in fp32
    assert losses[-1] < losses[0]
    assert tokens < 0.75 * unsorted_tokens


LARGE = """
import resource, sys
import numpy as np, torch
sys.path.insert(0, {root!r})
torch.set_num_threads(1)
from tests.invariants import test_data
from tests.sessions import session
from pathlib import Path
Recipe = test_data.{recipe}
session(Recipe({data!r}), Path({run!r}) / "warm", dict(epochs=1, subset=8))
data_bytes = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (data_bytes + 64 * 2**20, -1))
try:
    np.fromfile({data!r}, dtype=np.float32)
except MemoryError:
    print("does not fit")
session(Recipe({data!r}), Path({run!r}) / "run", dict(workers=2), stop="limit", at=3)
session(Recipe({data!r}), Path({run!r}) / "run", dict(workers=0))
"""
ROWS, WIDTH, SHARD_ROWS = 1024, 2**15, 16


class Mapped:
    """128 MiB of samples in a memory-mapped file."""

    epochs, effective_batch = 1, 256

    def __init__(self, path):
        self.path = path

    def model(self):
        return nn.Linear(4, 1)

    def batch(self, size):
        return torch.zeros(size, 4)

    def loss(self, model, batch):
        return (model(batch) - batch.sum(dim=1, keepdim=True)).square().mean()

    def data(self):
        table = np.memmap(self.path, dtype=np.float32, mode="r", shape=(ROWS, WIDTH))
        return {"train": Rows(table), "validation": Rows(table[:9])}


class Rows:
    def __init__(self, table):
        self.table = table

    def __len__(self):
        return len(self.table)

    def __getitem__(self, index):
        return first_and_last(self.table[index])


class Sharded(Mapped):
    """The same samples in shards of 2 MiB that are read into memory."""

    effective_batch = 32

    def data(self):
        def read(number):
            count = SHARD_ROWS * WIDTH
            table = np.fromfile(self.path, dtype=np.float32, count=count, offset=4 * count * number)
            return iter(table.reshape(SHARD_ROWS, WIDTH))

        shards = ROWS // SHARD_ROWS
        return {
            "train": Shards(range(shards), [SHARD_ROWS] * shards, read, decode=first_and_last),
            "validation": [torch.ones(4)],
        }


def first_and_last(row):
    return torch.tensor([row[0], row[1], row[-2], row[-1]])


@pytest.mark.parametrize("recipe", slow_except([Mapped, Sharded], Sharded))
def test_data_larger_than_memory_gives_the_same_bits(recipe, tmp_path):
    file = tmp_path / "rows.bin"
    table = np.memmap(file, dtype=np.float32, mode="w+", shape=(ROWS, WIDTH))
    table[:, 0] = np.random.RandomState(0).rand(ROWS)
    table[:, -1] = 1
    table.flush()
    root, name = str(Path(__file__).parents[2]), recipe.__name__
    code = LARGE.format(root=root, data=str(file), run=str(tmp_path), recipe=name)
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    assert process.stdout == "does not fit\n"  # all data at once, under the memory limit of the training
    session(recipe(str(file)), tmp_path / "straight", {"workers": 0})
    assert final_bits(tmp_path / "run") == final_bits(tmp_path / "straight")
    assert json.loads((tmp_path / "run" / "state.json").read_text())["status"] == "finished"
