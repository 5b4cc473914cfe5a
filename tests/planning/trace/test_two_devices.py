"""The record of a model that is divided between two devices."""

from collections import Counter
from dataclasses import replace

import torch
from torch import nn

from shoestring.base.settings import Settings
from shoestring.hardware.catalog import DEVICES
from shoestring.planning.trace import Trace, Tracer
from shoestring.planning.trace.record import BETWEEN_GPUS, Alloc, Free, Op, Phase
from shoestring.recipe import finding

WIDTH, BLOCKS, SAMPLES = 64, 4, 8
BLOCK = 4 * (WIDTH * WIDTH + WIDTH)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, values):
        return values + torch.tanh(self.inner(values))


class Deep:
    effective_batch = 4 * SAMPLES

    def model(self):
        return nn.Sequential(*(Block() for _ in range(BLOCKS)))

    def batch(self, size):
        return torch.zeros(size, WIDTH)

    def loss(self, model, batch):
        return (model(batch) - batch).square().mean()


def live(trace: Trace, until: Phase) -> Counter[str]:
    """Return the bytes by part that are allocated when a phase begins."""
    total: Counter[str] = Counter()
    for event in trace.events:
        if event == until:
            break
        if isinstance(event, Alloc | Free):
            storage = trace.storages[event.storage]
            total[storage.part] += storage.bytes if isinstance(event, Alloc) else -storage.bytes
    return total


def peak_of_activations(trace: Trace) -> int:
    current = peak = 0
    for event in trace.events:
        if isinstance(event, Alloc | Free) and trace.storages[event.storage].part == "activations":
            size = trace.storages[event.storage].bytes
            current += size if isinstance(event, Alloc) else -size
            peak = max(peak, current)
    return peak


def test_each_device_has_its_part_and_the_microbatches_in_flight():
    loaded, settings = finding.choose(Deep(), {"sharding": "pipeline", "micro_batch": SAMPLES, "precision": "fp32"})
    settings = replace(settings, gpus=2, checkpointing="no")
    with Tracer(loaded) as tracer:
        first = tracer.trace(settings, accumulate=4, device=DEVICES["t4"])
        plain = tracer.trace(Settings(micro_batch=SAMPLES, precision="fp32"), accumulate=4, device=DEVICES["t4"])
    second = first.second
    assert second is not None and first.microbatches == 3
    assert Trace.from_json(first.json()) == first
    weights = [live(part, Phase("optimizer", 1, 0))["weights"] for part in (first, second, plain)]
    assert weights == [2 * BLOCK, 2 * BLOCK, 4 * BLOCK]
    states = [live(part, Phase("end", 1, 0))["optimizer states"] for part in (first, second, plain)]
    assert states[0] + states[1] == states[2]
    names = [Counter(event.name for event in part.events if isinstance(event, Op)) for part in (first, second)]
    # The hidden state, the batch for the loss, and the gradient of the hidden state.
    assert sum(of_part[BETWEEN_GPUS] for of_part in names) == 2 * 3 * 3
    assert names[0]["aten::addmm"] == names[1]["aten::addmm"] == 2 * 3 * 2
    # A block saves its input, which is the batch for the first one, and the result of tanh. The model's forward still
    # has the output of the first part while the backward of the microbatch before runs.
    hidden = 4 * SAMPLES * WIDTH
    assert peak_of_activations(first) == (2 * 3 + 1) * hidden
    # The second part has one microbatch: the loss saves the difference, and its output and the copied batch are alive.
    assert peak_of_activations(second) == 7 * hidden + 4
    phases = [event for event in first.events if isinstance(event, Phase) and event.update == 1]
    assert [(phase.name, phase.microbatch) for phase in phases[:7]] == [
        ("forward", 0),
        ("backward", 0),
        ("forward", 1),
        ("backward", 0),
        ("forward", 1),
        ("backward", 1),
        ("forward", 2),
    ]
