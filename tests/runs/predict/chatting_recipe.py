"""A recipe whose model answers with what it was told, word by word, and never stops after `endless`."""

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn


@dataclass(frozen=True, kw_only=True)
class Options:
    data: Path | None = None
    shout: bool = False


class Chatting:
    epochs, effective_batch, learning_rate = 1, 4, 0.1
    prediction_options = ("shout",)

    def __init__(self, options=None):
        self.options = options or Options()

    def model(self):
        return nn.Linear(1, 1)

    def batch(self, size):
        return torch.zeros(size, 1)

    def loss(self, model, batch):
        return model(batch).square().mean()

    def data(self):
        return torch.zeros(4, 1)

    def predict(self, model, batch):
        return [0] * len(batch)

    def converse(self, model, messages):
        assert not model.training and not torch.is_grad_enabled()
        question = messages[-1]["content"]
        if question == "fail":
            raise ValueError("the prompt is too long")
        if question == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory")
        if question == "color":
            yield "\x1b[31mred"
            return
        yield f"{len(messages)}:"
        while question == "endless":
            time.sleep(0.01)
            yield " more"
        answer = f" you said {question} after {[message['content'] for message in messages[:-1]]}"
        yield answer.upper() if self.options.shout else answer
