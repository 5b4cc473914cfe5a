"""One changed byte in any file of a run: the same result, or a message."""

import os
import random
import shutil
from pathlib import Path

import pytest

import shoestring
from shoestring.base.errors import ShoestringError
from shoestring.training.monitor.events import read
from shoestring.training.run_directory.one_run import name_run
from tests.runs.test_evaluate import planned
from tests.sessions import light_bits, session
from tests.slow import slow_except

RECIPE = """
import torch
from torch import nn

class Mine:
    effective_batch = 4
    epochs = 3
    def model(self): return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    def batch(self, size): return torch.ones(size, 3)
    def loss(self, model, batch): return (model(batch) - batch.sum(1, keepdim=True)).square().mean()
    def data(self):
        samples = torch.randn(32, 3, generator=torch.Generator().manual_seed(1))
        return {"train": samples[:16], "validation": samples[16:24], "test": samples[24:]}
"""
SETTINGS = {"micro_batch": 4, "save_every_updates": 2, "keep_light": 2}
BYTES_PER_FILE = 40 if os.environ.get("SHOESTRING_SOAK") else 1
MESSAGES = ("has changed since", "damaged", "cannot be read", "not a JSON object", "is missing")


def train(recipe, run, capsys):
    """Return the result of the run, and whether there are messages about it. A finished run is not trained again."""
    count, finished = len(list(read(run / "events.jsonl"))), (run / "light" / "model.safetensors").exists()
    outcome = shoestring.train(str(recipe), run=run, on="cpu")
    events = list(read(run / "events.jsonl"))[count:]
    has_messages = any(event["event"] in ("damaged", "note") for event in events) or "note:" in capsys.readouterr().err
    weights = () if finished else (light_bits(run / "light"), light_bits(run / "best"))
    return (outcome, weights), has_messages


def evaluate(recipe, run, capsys):
    evaluation = shoestring.evaluate(run, recipe=str(recipe), on="cpu")
    return evaluation.metrics, evaluation.notes


def report(recipe, run, capsys):
    page = shoestring.report(run).read_text()
    return page, [message for message in MESSAGES if message in page]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "mine.py"
    path.write_text(RECIPE)
    return path


@pytest.mark.parametrize("status", slow_except(["finished", "paused"], "paused"))
def test_flipped_byte_is_reported_or_has_no_effect(tmp_path, recipe, status, capsys):
    original, run, rng = tmp_path / "original", tmp_path / "run", random.Random(0)
    session(str(recipe), original, SETTINGS, **({"stop": "limit", "at": 8} if status == "paused" else {}))
    planned(original, str(recipe), {}, SETTINGS)
    name_run(original)
    capsys.readouterr()  # the note that it has an id now
    shoestring.report(original)
    verbs = (train, evaluate, report) if status == "finished" or BYTES_PER_FILE > 1 else (train,)
    expected = {}
    for verb in verbs:
        copy(original, run)
        expected[verb], messages = verb(recipe, run, capsys)
        assert not messages, messages
    silent = []
    for file in sorted(path for path in original.rglob("*") if path.is_file() and path.stat().st_size):
        for _ in range(BYTES_PER_FILE):
            position, bit = rng.randrange(file.stat().st_size), rng.randrange(8)
            for verb in verbs:
                copy(original, run)
                flip(run / file.relative_to(original), position, bit)
                try:
                    result, messages = verb(recipe, run, capsys)
                except ShoestringError:
                    continue
                if result != expected[verb] and not messages:
                    silent.append(f"{verb.__name__} with bit {bit} of byte {position} of {file.relative_to(original)}")
    assert not silent


def copy(original: Path, run: Path):
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(original, run)


def flip(path: Path, position: int, bit: int):
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)
