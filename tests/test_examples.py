import io
import itertools
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

from shoestring.runs.train.launch import launch
from shoestring.runs.train.session import LaunchRequest
from shoestring.training.checkpoint.store import Store
from shoestring.training.monitor.events import read
from tests.sessions import final_bits, final_checkpoint, session

EXAMPLES = Path(__file__).parents[1] / "examples"
UPDATES = 40  # own_loop has 15 updates in an epoch


def test_the_spirals_are_classified(tmp_path):
    example = EXAMPLES / "spiral.py"
    assert len(example.read_text().splitlines()) < 40
    outcome = launch(str(example), {}, LaunchRequest(run=tmp_path))
    assert outcome.status == "finished"
    assert outcome.metrics["validation"]["loss"] < 0.1


@pytest.mark.slow
def test_two_networks_are_trained_in_stages(tmp_path):
    example = str(EXAMPLES / "gan.py")
    outcome = launch(example, {}, LaunchRequest(run=tmp_path / "whole"))
    assert outcome.metrics["validation"]["distance"] < 0.5  # it begins with 2.2
    values = {"epochs": 1, "micro_batch": 16}
    session(example, tmp_path / "one", values)
    session(example, tmp_path / "two", values, stop="SIGTERM", at=27)  # in the stage of the generator
    session(example, tmp_path / "two", values)
    assert final_bits(tmp_path / "one") == final_bits(tmp_path / "two")


@pytest.mark.slow
def test_lines_of_text_are_staged_streamed_and_padded(tmp_path, monkeypatch):
    (tmp_path / "slow").mkdir()
    (tmp_path / "local").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "local"))
    for name in "abc":
        lines = (f"{name * (1 + 3 * number % 40)} follows {name}" for number in range(60))
        (tmp_path / "slow" / f"{name}.txt").write_text("\n".join(lines))
    values = {"data": str(tmp_path / "slow"), "stage": "yes", "epochs": 2, "width": 16, "micro_batch": 16}
    assert launch(str(EXAMPLES / "lines.py"), values, LaunchRequest(run=tmp_path / "run")).status == "finished"
    events = list(read(tmp_path / "run" / "events.jsonl"))
    losses = [event["loss"] for event in events if event["event"] == "progress"]
    assert losses[-1] < 5.5  # a uniform distribution over 256 bytes has 5.55
    assert any("data is read from" in event["message"] for event in events if event["event"] == "note")
    assert len(list((tmp_path / "local").glob("*/*/copy/slow/*.txt"))) == 3


def test_tar_files_are_indexed_once_and_resume_is_exact(tmp_path):
    folder = tmp_path / "tars"
    folder.mkdir()
    for shard in range(3):
        with tarfile.open(folder / f"{shard}.tar", "w") as archive:
            for number in range(6 + shard):
                label = (number + shard) % 2
                content = torch.full((16,), float(label)) + torch.arange(16) / 50
                for ending, data in (("x.bin", content.numpy().tobytes()), ("cls", str(label).encode())):
                    member = tarfile.TarInfo(f"folder.v1/{number:03}.{ending}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
    values = {"data": str(folder), "micro_batch": 4}
    example = str(EXAMPLES / "tars.py")
    session(example, tmp_path / "one", values)
    index = json.loads((folder / "index.json").read_text())
    assert [entry["samples"] for entry in index.values()] == [6, 7, 8]
    module = load_example("tars")
    module.read_samples = lambda file: pytest.fail(f"{file} was read again")
    assert module.counts(sorted(folder.glob("*.tar"))) == [6, 7, 8]
    (folder / "index.json").unlink()
    session(example, tmp_path / "two", values, stop="SIGTERM", at=5)
    session(example, tmp_path / "two", values)
    assert final_checkpoint(tmp_path / "one") == final_checkpoint(tmp_path / "two")


def load_example(name):
    spec = spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def own_loop():
    return load_example("own_loop")


@pytest.fixture
def engine_state(own_loop, tmp_path):
    """Return the final state of an engine run with the same model, loss and data."""

    class Recipe:
        epochs, effective_batch, seed = 3, 64, 0
        loss = staticmethod(own_loop.loss)

        def model(self):
            layers = torch.nn.Linear(2, 64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1)
            return torch.nn.Sequential(*layers)

        def batch(self, size):
            return torch.zeros(size, 2)

        def data(self):
            return own_loop.POINTS

        def optimizer(self, model):
            return torch.optim.AdamW(model.parameters(), lr=0.01)

    outcome = session(Recipe(), tmp_path / "engine", {}, stop="SIGTERM", at=UPDATES)
    assert outcome.update == UPDATES
    return load_state(tmp_path / "engine")


def load_state(run):
    """Return the update and the bits of model and optimizer from a run's newest checkpoint."""
    saved = Store(run / "checkpoints").load()
    adam = saved.state["optimizer"]["state"]
    bits = [*saved.state["model"].values(), *(value for slots in adam.values() for value in slots.values())]
    return saved.update, [tensor.numpy().tobytes() for tensor in bits]


def test_own_loop_is_bit_equal_to_the_engine(own_loop, engine_state, tmp_path):
    assert len((EXAMPLES / "own_loop.py").read_text().splitlines()) <= 40
    own_loop.train(tmp_path / "own", updates=UPDATES)
    assert load_state(tmp_path / "own") == engine_state
    own_loop.train(tmp_path / "other", updates=UPDATES, seed=1)
    assert load_state(tmp_path / "other")[1] != engine_state[1]


def test_own_loop_resumes_twice_in_an_epoch(own_loop, engine_state, tmp_path, monkeypatch):
    saved_updates, loss = [], own_loop.loss

    def interrupting_loss(model, points):
        interrupting_loss.remaining_calls -= 1
        if not interrupting_loss.remaining_calls:
            os.kill(os.getpid(), signal.SIGTERM)
        return loss(model, points)

    monkeypatch.setattr(own_loop, "loss", interrupting_loss)
    for interrupting_loss.remaining_calls in (3, 5, 1000):
        own_loop.train(tmp_path / "own", updates=UPDATES)
        saved_updates.append(load_state(tmp_path / "own")[0])
    assert saved_updates == [3, 8, UPDATES]
    assert load_state(tmp_path / "own") == engine_state


def test_own_loop_resumes_under_a_short_limit(own_loop, engine_state, tmp_path):
    """The limit is shorter than an update, so every session saves after a single update."""
    for update in range(1, 4):
        own_loop.train(tmp_path / "own", limit_seconds=0.001, updates=UPDATES)
        assert load_state(tmp_path / "own")[0] == update
    own_loop.train(tmp_path / "own", updates=UPDATES)
    assert load_state(tmp_path / "own") == engine_state


def test_own_loop_recovers_from_out_of_memory(own_loop, tmp_path, monkeypatch):
    """The failed update is repeated with half the microbatch size, which later updates and sessions keep."""
    sizes, loss = [], own_loop.loss

    def limited_loss(model, points):
        sizes.append(len(points))
        if len(points) > 32:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return loss(model, points)

    monkeypatch.setattr(own_loop, "loss", limited_loss)
    own_loop.train(tmp_path / "own", updates=5)
    assert sizes == [64, *[32, 32] * 5]
    own_loop.train(tmp_path / "own", updates=6)
    assert sizes[11:] == [32, 32]
    assert Store(tmp_path / "own" / "checkpoints").load().state["size"] == 32


def train_accelerate(run, calls=0, number=signal.SIGTERM):
    """Train the example with Accelerate; the signal `number` is sent in call number `calls` of its loss."""
    example = load_example("accelerate_loop")
    loss, counter = example.loss, itertools.count(1)

    def interrupting_loss(model, points):
        if next(counter) == calls:
            os.kill(os.getpid(), number)
        return loss(model, points)

    example.loss = interrupting_loss
    example.train(run, updates=UPDATES)
    return load_state(run)


@pytest.mark.slow
def test_accelerate_loop_continues_to_the_same_bits(tmp_path):
    """A signal ends a session with a save. A kill loses the updates since the last save, and they are repeated."""
    assert len((EXAMPLES / "accelerate_loop.py").read_text().splitlines()) < 50
    run = tmp_path / "run"
    assert train_accelerate(run, 30)[0] == 8  # an update has four microbatches
    script = (
        "import signal, sys, torch; from pathlib import Path; from tests.test_examples import train_accelerate;"
        "torch.set_num_threads(int(sys.argv[2])); train_accelerate(Path(sys.argv[1]), 50, signal.SIGKILL)"
    )
    arguments = [sys.executable, "-c", script, str(run), str(torch.get_num_threads())]
    assert subprocess.run(arguments, check=False).returncode == -signal.SIGKILL
    assert load_state(run)[0] == 8
    assert train_accelerate(run, 9)[0] == 11
    assert train_accelerate(run) == train_accelerate(tmp_path / "whole")
    assert load_state(run)[0] == UPDATES
