"""What `test_bf16.py` runs on a simulated L4, in one process: python -m tests.lab.engine.bf16 FOLDER CHECK ..."""

import sys
from pathlib import Path

import torch
from torch.optim import SGD

from tests.lab.engine.networks import NETWORKS, Classifier
from tests.lab.engine.trained import CPU, assert_same_bits, largest_difference, train

BF16 = {"precision": "bf16"}


def assert_near(a, b, tolerance):
    assert max(abs(loss - other) for loss, other in zip(a.losses, b.losses, strict=True)) < tolerance


def values(folder):
    """Weights and losses differ from those of fp32 by the rounding of bf16, and no loss is scaled."""
    for network in NETWORKS:
        recipe = Classifier(network=network, optimizer=lambda model: SGD(model.parameters(), lr=0.1, momentum=0.9))
        gpu = train(folder / f"{network} gpu", recipe, BF16)
        cpu = train(folder / f"{network} cpu", recipe, {}, device=CPU)
        assert_near(gpu, cpu, 2e-2)
        assert 0 < largest_difference(gpu, cpu) < 5e-2
        assert gpu.state["scaler"] is None


def graphs_and_stops(folder):
    """A run with graphs that stops and continues has the bits of one without graphs."""
    recipe, with_graphs = Classifier(network="attending", share=0.3), {**BF16, "micro_batch": 2, "compile": "graphs"}
    eager = train(folder / "eager", recipe, {**BF16, "micro_batch": 2})
    train(folder / "graphs", recipe, with_graphs, stop="limit", at=7, status="paused")
    assert_same_bits(train(folder / "graphs", recipe, with_graphs), eager, state=False)


def techniques(folder):
    """Offloaded states, recomputed blocks and the kernels of the optimizer change no bit."""
    recipe = Classifier(network="attending", share=0.3)
    plain = train(folder / "plain", recipe, BF16)
    for number, settings in enumerate(
        ({"offload": "optimizer"}, {"checkpointing": "full"}, {"optimizer_kernel": "foreach"})
    ):
        assert_same_bits(train(folder / f"technique {number}", recipe, {**BF16, **settings}), plain, state=False)


def weights(folder):
    """Weights in bf16, whose averages are in fp32, and adapters in fp32 on weights in bf16, also after a stop."""
    cases = (
        ({"weights": "bf16", "ema": 0.5}, {torch.bfloat16, torch.float32}),
        ({"weights": "bf16", "lora_r": 2, "lora_targets": "linear"}, {torch.float32}),  # adapters alone are saved
    )
    for number, (options, expected) in enumerate(cases):
        recipe = Classifier(network="attending", share=0.3)
        straight = train(folder / f"weights {number}", recipe, {**BF16, **options})
        dtypes = {tensor.dtype for name, tensor in straight.tensors.items() if name.startswith(("model", "averaged"))}
        assert dtypes == expected
        train(folder / f"stopped {number}", recipe, {**BF16, **options}, stop="limit", at=7, status="paused")
        assert_same_bits(train(folder / f"stopped {number}", recipe, {**BF16, **options}), straight)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[2:]:
        globals()[name](Path(sys.argv[1], name))
        sys.stdout.write(f"{name}\n")
