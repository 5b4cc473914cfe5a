"""Whether processes with different data notice it."""

import random

import pytest
import torch

from shoestring.base.errors import RunError
from shoestring.recipe.finding import find
from shoestring.training.engine.parallel.ranks import Ranks
from shoestring.training.processes.replicas import Replicas
from shoestring.training.same_data import require_same_data
from tests.ranks import run_ranks

VALUES = torch.arange(9.0)
OTHER = VALUES.flip(0)


class Random(list):
    def __getitem__(self, index):
        return random.SystemRandom().random()


class Drawn(list):
    def __getitem__(self, index):
        return super().__getitem__(index) + torch.rand(1)


class Stated:
    def __init__(self, text):
        self.text = text

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return {"text": self.text, "pair": (index, None)}


class Mine:
    effective_batch = 2

    def collate(self, samples):
        return samples

    def model(self): ...
    def batch(self, size): ...
    def loss(self, model, batch): ...


SAME = {
    "equal": ({"train": VALUES, "test": [1, 2]},) * 2,
    "copied": ({"train": Stated("/tmp/0/a.png")}, {"train": Stated("/tmp/1/a.png")}),
    "random": ({"train": Random([1, 2])},) * 2,
    "drawn": ({"train": Drawn([1, 2])},) * 2,
    "without a length": ({"train": VALUES, "test": iter([1])}, {"train": VALUES, "test": iter([1, 2])}),
}
DIFFERENT = {
    "train has other samples than in the first process": ({"train": VALUES}, {"train": OTHER}),
    "test has 2 samples, and 3 in the first process": (
        {"train": VALUES, "test": [1, 2, 3]},
        {"train": VALUES, "test": [1, 2]},
    ),
    "test is not a part in each process": ({"train": VALUES, "test": [1]}, {"train": VALUES}),
    "train has other samples": ({"train": Stated("a")}, {"train": Stated("b")}),
    "1: train has other samples": ({"train": Drawn([1, 2])}, {"train": Drawn([2, 1])}),
}


def test_processes_with_other_data_are_an_error_of_all(tmp_path):
    def act(rank):
        processes, loaded = Replicas(Ranks.join()), find(Mine())
        states = random.getstate(), torch.get_rng_state().tolist()
        for parts in SAME.values():
            require_same_data(processes, loaded, parts[rank], workers=None)
        for message, parts in DIFFERENT.items():
            with pytest.raises(RunError, match=message) as raised:
                require_same_data(processes, loaded, parts[rank], workers=0)
            assert raised.value.message.removeprefix("GPU 1: ").startswith("data() returned other data in process 1: ")
        assert (random.getstate(), torch.get_rng_state().tolist()) == states

    assert run_ranks(2, act, tmp_path) == [0, 0]
