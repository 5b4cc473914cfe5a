"""Golden cases by hand: optimizers and their kernels, types of weights, checkpointing, 8-bit and offloaded states.

A stack of N linear layers without bias, so all weights together are P bytes and each is L = P / N. What an optimizer's
step makes on the way is read off torch 2.13's `torch/optim/*.py`; the comments name the lines by what they make.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import nn

from shoestring.errors import UsageError
from shoestring.hardware.catalog import DEVICES
from shoestring.recipe import finding
from shoestring.settings import Settings
from shoestring.techniques.eightbit import BlockwiseAdamW
from shoestring.trace import Trace, Tracer
from shoestring.trace.record import Alloc, Free, Phase

N, WIDTH = 4, 256
L = 4 * WIDTH * WIDTH
P = N * L
R = 4 * WIDTH
"""One value for each row, or for each column, of a weight."""
STEPS = 4 * N
"""The count of steps, on the device where the kernel reads it there (fused), else on the CPU."""


class Stack:
    effective_batch = 8

    def __init__(self, make: Callable[..., Any] = torch.optim.AdamW, dtype: torch.dtype = torch.float32) -> None:
        self.make, self.dtype = make, dtype

    def model(self) -> nn.Module:
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False, dtype=self.dtype) for _ in range(N)))

    def batch(self, size: int) -> torch.Tensor:
        return torch.zeros(size, WIDTH, dtype=self.dtype)

    def loss(self, model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch).sum()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return self.make(model.parameters(), lr=0.1)


def with_momentum(params: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=lr, momentum=0.9)


@pytest.fixture(scope="module")
def open_tracer() -> Iterator[Callable[[object], Tracer]]:
    with ExitStack() as stack:
        known: dict[Any, Tracer] = {}

        def of(key: Any, made: object) -> Tracer:
            if key not in known:
                known[key] = stack.enter_context(Tracer(finding.find(made)))
            return known[key]

        yield of


def trace(tracer: Tracer, **settings: Any) -> Trace:
    chosen = Settings(**{"micro_batch": 8, "precision": "fp32", **settings})
    return tracer.trace(chosen, accumulate=1, device=DEVICES["t4"])


def peak(found: Trace, phase: str, update: int = 1) -> int:
    """Most bytes alive in a phase, what it begins with included."""
    live = most = 0
    within = False
    for event in found.events:
        if isinstance(event, Phase):
            within = (event.name, event.update) == (phase, update)
        elif isinstance(event, Alloc | Free):
            size = found.storages[event.storage].bytes
            live += size if isinstance(event, Alloc) else -size
        most = max(most, live) if within else most
    return most


def live_at(found: Trace, phase: str, update: int = 1) -> Counter[str]:
    """Bytes by part when a phase begins."""
    live: Counter[str] = Counter()
    for event in found.events:
        if isinstance(event, Alloc | Free):
            storage = found.storages[event.storage]
            live[storage.part] += storage.bytes if isinstance(event, Alloc) else -storage.bytes
        elif isinstance(event, Phase) and (event.name, event.update) == (phase, update):
            return +live
    raise AssertionError(f"no phase {phase}")


GOLDEN = [
    # Weights and gradients, P each; every step is in place.
    (torch.optim.SGD, {"for-loop": 2 * P, "foreach": 2 * P, "fused": 2 * P}),
    # One state more.
    (with_momentum, {"for-loop": 3 * P, "foreach": 3 * P, "fused": 3 * P}),
    # Two states. One by one: sqrt(), its quotient, and the denominator of the tensor before, still under its name.
    # Many at once: a denominator for every tensor. In one kernel: nothing, but it counts its steps on the device.
    (torch.optim.Adam, {"for-loop": 4 * P + 3 * L, "foreach": 5 * P, "fused": 4 * P + STEPS}),
    (torch.optim.AdamW, {"for-loop": 4 * P + 3 * L, "foreach": 5 * P, "fused": 4 * P + STEPS}),
    # One state. One by one: sqrt(), eps added in place, and the one before. Many at once: all of them.
    (torch.optim.RMSprop, {"for-loop": 3 * P + 2 * L, "foreach": 4 * P}),
    # The same, but many at once also makes a product of every gradient and the learning rate.
    (torch.optim.Adagrad, {"for-loop": 3 * P + 2 * L, "foreach": 5 * P, "fused": 3 * P + STEPS}),
    # A state for each row and each column. One by one: their product and the one before, the means of rows and of
    # columns, a mean over rows. Many at once: all products, and a mean over rows of each.
    (torch.optim.Adafactor, {"for-loop": 2 * P + 2 * N * R + 2 * L + 2 * R + 4, "foreach": 3 * P + 2 * N * R + 4 * N}),
]


@pytest.mark.parametrize(("make", "expected"), GOLDEN, ids=lambda value: getattr(value, "__name__", ""))
def test_the_step_of_each_kernel_to_the_byte(open_tracer: Any, make: Any, expected: dict[str, int]) -> None:
    tracer = open_tracer(make, Stack(make))
    found = {kernel: peak(trace(tracer, optimizer_kernel=kernel), "optimizer") for kernel in expected}
    assert found == expected
    chosen = "for-loop" if make is torch.optim.Adafactor else "foreach"
    assert peak(trace(tracer), "optimizer") == expected[chosen]  # what torch takes on CUDA
    if "fused" not in expected:
        with pytest.raises(UsageError, match="has for-loop, foreach"):
            trace(tracer, optimizer_kernel="fused")


@pytest.mark.parametrize("name", ["NAdam", "RAdam", "Adamax", "ASGD", "Adadelta", "Rprop"])
def test_the_other_optimizers_of_torch_are_followed_in_each_kernel(open_tracer: Any, name: str) -> None:
    tracer = open_tracer(name, Stack(getattr(torch.optim, name)))
    one, many = (peak(trace(tracer, optimizer_kernel=kernel), "optimizer") for kernel in ("for-loop", "foreach"))
    assert 2 * P < one < many


def test_under_autocast_the_step_is_that_of_fp32_and_the_scalers_three_numbers(open_tracer: Any) -> None:
    tracer = open_tracer(torch.optim.AdamW, Stack())
    found = trace(tracer, precision="fp16", optimizer_kernel="for-loop")
    assert peak(found, "optimizer") == 4 * P + 3 * L + 3 * 4
    # Each layer keeps its weight in fp16 for backward, but for the first one, whose input needs no gradient, and the
    # input in fp16: the batch's own cast first, then the outputs of the layers before.
    activations = live_at(found, "backward")["activations"]
    assert activations == P // 2 - L // 2 + N * 2 * 8 * WIDTH + LOSS


def test_fp16_weights_halve_all_of_it(open_tracer: Any) -> None:
    tracer = open_tracer("fp16", Stack(dtype=torch.float16))
    assert peak(trace(tracer, optimizer_kernel="for-loop"), "optimizer") == (4 * P + 3 * L) // 2
    assert peak(trace(tracer, optimizer_kernel="foreach"), "optimizer") == 5 * P // 2


class Blocks(Stack):
    """N blocks of two layers, from A = 8 x WIDTH values to H = 8 x 4 WIDTH and back."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            *(
                nn.Sequential(
                    nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH, bias=False)
                )
                for _ in range(N)
            )
        )


A, H = 4 * 8 * WIDTH, 4 * 8 * 4 * WIDTH
LOSS = 4


@pytest.mark.parametrize(("setting", "again"), [("no", 0), ("full", N), ("1", 1)])
def test_a_block_that_is_computed_again_keeps_its_input_alone(open_tracer: Any, setting: str, again: int) -> None:
    """The first block's input is the batch, the last one's output is summed and gone; what ReLU made is kept inside."""
    found = trace(open_tracer(Blocks, Blocks()), checkpointing=setting)
    assert live_at(found, "backward")["activations"] == (N - 1) * A + (N - again) * H + LOSS


def test_casts_that_recomputation_makes_end_with_their_block(open_tracer: Any) -> None:
    found = trace(open_tracer(Blocks, Blocks()), checkpointing="full", precision="fp16")
    left = live_at(found, "optimizer")
    assert left["activations"] + left["temporaries"] < A


def test_more_blocks_than_there_are_is_a_question_about_their_number(open_tracer: Any) -> None:
    with pytest.raises(UsageError, match="has 4 blocks"):
        trace(open_tracer(Blocks, Blocks()), checkpointing="5")


def most_weights(found: Trace) -> dict[str, int]:
    """The most bytes of weights alive in each phase of the measured update."""
    live, most, phase = 0, Counter[str](), ""
    for event in found.events:
        if isinstance(event, Phase):
            phase = event.name if event.update else ""
        elif isinstance(event, Alloc | Free) and found.storages[event.storage].part == "weights":
            size = found.storages[event.storage].bytes
            live += size if isinstance(event, Alloc) else -size
        most[phase] = max(most[phase], live)
    return dict(most)


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.Adagrad])
def test_an_optimizer_in_host_memory_takes_nothing_on_the_device(open_tracer: Any, make: Any) -> None:
    found = trace(open_tracer(make, Stack(make)), offload="optimizer")
    assert peak(found, "optimizer") == 2 * P
    assert live_at(found, "end") == {"weights": P}


W = 4 * WIDTH * 4 * WIDTH
"""One weight of a block; each has two."""


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_offloaded_weights_come_block_by_block_and_for_backward_one_by_one(open_tracer: Any, precision: str) -> None:
    found = trace(open_tracer(Blocks, Blocks()), offload="parameters", precision=precision)
    weights = most_weights(found)
    # Nothing is there between updates. Under autocast backward needs its fp16 copies, which stayed as activations.
    assert (weights["forward"], weights["backward"]) == (2 * W, W if precision == "fp32" else 0)
    assert weights["optimizer"] == 0 and live_at(found, "optimizer")["gradients"] == 0
    kept = live_at(found, "backward")["activations"]
    if precision == "fp32":
        assert kept == (N - 1) * A + N * H + LOSS
    else:  # also of the first block's first weight: its copy is no leaf, since the weight came to the device
        assert kept > N * W - W // 2


def test_computed_again_the_whole_block_comes_for_backward(open_tracer: Any) -> None:
    found = trace(open_tracer(Blocks, Blocks()), offload="parameters", checkpointing="full")
    weights = most_weights(found)
    assert (weights["forward"], weights["backward"], weights["optimizer"]) == (2 * W, 2 * W, 0)
    assert live_at(found, "backward")["activations"] == (N - 1) * A + LOSS


def test_offload_needs_blocks_and_one_gpu(open_tracer: Any) -> None:
    with pytest.raises(UsageError, match="no blocks"):
        trace(open_tracer(torch.optim.AdamW, Stack()), offload="parameters")
    settings = Settings(micro_batch=8, precision="fp32", offload="optimizer")
    with pytest.raises(UsageError, match="several GPUs"):
        open_tracer(Blocks, Blocks()).trace(settings, accumulate=1, device=DEVICES["t4"], gpus=2)


@pytest.mark.parametrize(
    ("options", "states"),
    [
        # Two states of a byte a value, for each an fp32 scale for every 256, and two tables that all share.
        ({"bits": 8}, 2 * (P // 4 + P // 256) + 2 * 4 * 256),
        # Weights of 65,536 values are too small to be swapped out.
        ({"bits": 32, "paged": True}, 2 * P),
        ({"bits": 8, "paged": True}, 2 * (P // 4 + P // 256) + 2 * 4 * 256),
    ],
)
def test_the_states_of_bitsandbytes(open_tracer: Any, options: dict[str, Any], states: int) -> None:
    tracer = open_tracer(str(options), Stack(functools.partial(BlockwiseAdamW, **options)))
    assert peak(trace(tracer), "optimizer") == 2 * P + states


def test_large_paged_states_take_nothing_of_the_allocators(open_tracer: Any) -> None:
    class Wide(Stack):
        def model(self) -> nn.Module:
            return nn.Sequential(nn.Linear(WIDTH, 512, bias=False), nn.Linear(512, 4, bias=False))

    for bits, scales in ((32, 0), (8, 2 * 4 * 512)):
        made = Wide(functools.partial(BlockwiseAdamW, bits=bits, paged=True))
        large, small = 4 * WIDTH * 512, 4 * 512 * 4
        found = trace(open_tracer(f"wide {bits}", made))
        # The small one's states are fp32; the large one's scales and the tables stay on the device.
        states = 2 * small + (scales + 2 * 4 * 256 if bits == 8 else 0)
        assert peak(found, "optimizer") == 2 * (large + small) + states
