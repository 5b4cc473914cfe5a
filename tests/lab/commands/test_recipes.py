"""The built-in recipes train on a GPU as on the CPU, and a stopped run ends in the bits of one that was not stopped."""

import pytest
import torch

from tests.lab.commands.tiny_runs import RECIPES, Observed, values_of
from tests.sessions import final_checkpoint, session

CUDA = torch.device("cuda")

COMPARED = ("legal crf", "temporal", "cloud", "finetune dpo", "lightning")
"""Kinds of which most kernels are used by no other; the others take longer."""
STOPPED = ("legal crf", "temporal", "cloud", "lightning")


def kinds(quick):
    return [kind if kind in quick else pytest.param(kind, marks=pytest.mark.slow) for kind in RECIPES]


TOLERANCE = {"fp32": 2e-5, "fp16": 2e-3, "bf16": 2e-2}
"""Relative, of a loss. Of fp32 a few times the rounding of a sum of a thousand products; of the 16-bit types, to which
activations are rounded, two to three times the distance between neighbouring numbers (2^-10, 2^-7)."""


def trained(kind, folder, precision, device):
    """Return the losses of all microbatches of a run without dropout, and the losses of its evaluations.

    Each value once: an update whose gradient overflows in fp16 is made again, with the same losses.
    """
    name, values = values_of(kind, folder / "data")
    if "lora_dropout" in values:  # of adapters, which are added to the recipe's model
        values["lora_dropout"] = 0.0
    losses = []
    outcome = session(
        name,
        folder / "run",
        values | {"precision": precision},
        wrap=lambda recipe: Observed(recipe, losses),
        device=torch.device(device),
    )
    assert outcome.status == "finished"
    return [*dict.fromkeys(losses)] + [metrics["loss"] for metrics in outcome.metrics.values() if "loss" in metrics]


@pytest.mark.parametrize("kind", kinds(COMPARED))
def test_losses_are_those_of_the_cpu(kind, tmp_path):
    expected = trained(kind, tmp_path / "cpu", "fp32", "cpu")
    assert len(expected) > 4
    for precision in ("fp32", "fp16"):
        losses = trained(kind, tmp_path / precision, precision, "cuda")
        assert losses == pytest.approx(expected, rel=TOLERANCE[precision]), precision


@pytest.mark.parametrize("kind", kinds(STOPPED))
def test_a_stopped_run_ends_in_the_bits_of_one_that_was_not(kind, tmp_path):
    """In fp16 with dropout, so that the states of the loss scaler and of the GPU's generator count."""
    name, values = values_of(kind, tmp_path / "data")
    values |= {"precision": "fp16"}
    assert session(name, tmp_path / "whole", values, device=CUDA).status == "finished"
    assert session(name, tmp_path / "run", values, stop="SIGTERM", at=3, device=CUDA).status == "paused"
    assert session(name, tmp_path / "run", values, device=CUDA).status == "finished"
    assert final_checkpoint(tmp_path / "run") == final_checkpoint(tmp_path / "whole")
