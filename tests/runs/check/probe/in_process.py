"""The child process of a probe, run in this process, which has imported torch."""

import time

import torch

from shoestring.runs.check.probe import child
from shoestring.training.engine.determinism import deterministic_shards


def run(module, request, seconds, *, environment, on_stage):
    """Stand in for `run_child`."""
    stages = []

    def report(stage):
        stages.append(stage)
        on_stage(stage)

    with deterministic_shards(None, torch.device("cpu")):  # which it leaves as it was
        child.run_probe(request, report, started=time.monotonic())
    return tuple(stages), ""
