"""What a session says before its first update, and a resumed one again, about a run that is not exact."""

import numpy as np
import torch

from shoestring.training.monitor.events import read
from tests.contrastive import InfoNCE
from tests.sessions import session


class Unseeded(InfoNCE):
    """Views with noise of a generator that each sample creates; the loss does not compare them."""

    def data(self):
        return Noise()

    def loss(self, model, batch):
        return model(batch[0]).square().mean()


class Noise:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        view = torch.arange(4) * float(np.random.default_rng().uniform(0.5, 1.5))
        return view, view


def messages(run, kind):
    return [event["message"] for event in read(run / "events.jsonl") if event["event"] == kind]


def test_unseeded_data_is_a_note_at_the_start_and_at_resume(tmp_path):
    values = {"epochs": 1, "micro_batch": 8}
    session(Unseeded(), tmp_path, values, stop="limit", at=2)
    (message,) = messages(tmp_path, "unseeded")
    assert "when fetched again with the same seeds" in message
    assert not any("share a microbatch" in note for note in messages(tmp_path, "note"))
    session(Unseeded(), tmp_path, values)
    assert len(messages(tmp_path, "unseeded")) == 1
    assert any("does not continue bit for bit" in note for note in messages(tmp_path, "note"))
