"""Golden cases by hand: optimizers and their kernels, types of weights, checkpointing, 8-bit and offloaded states.

The model is a stack of N linear layers without bias; all weights are P bytes in total and each is L = P / N. The
temporaries of an optimizer's step are those of torch 2.13's `torch/optim/*.py`.
"""

from __future__ import annotations

import functools
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import nn

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.hardware.catalog import DEVICES
from shoestring.planning.trace import Trace, Tracer
from shoestring.planning.trace.record import Alloc, Free, Phase
from shoestring.recipe import finding
from shoestring.techniques.eightbit import BlockwiseAdamW

N, WIDTH = 4, 256
L = 4 * WIDTH * WIDTH
P = N * L
R = 4 * WIDTH
"""Bytes of one value for each row, or for each column, of a weight."""
STEPS = 4 * N
"""Bytes of the step counts, which are on the device for the fused kernel and on the CPU otherwise."""


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
        tracers: dict[Any, Tracer] = {}

        def open_tracer(key: Any, recipe: object) -> Tracer:
            if key not in tracers:
                tracers[key] = stack.enter_context(Tracer(finding.find(recipe)))
            return tracers[key]

        yield open_tracer


def trace(tracer: Tracer, **settings: Any) -> Trace:
    all_settings = Settings(**{"micro_batch": 8, "precision": "fp32", **settings})
    return tracer.trace(all_settings, accumulate=1, device=DEVICES["t4"])


def peak(updates: Trace, phase: str, update: int = 1) -> int:
    """Return the peak bytes in a phase, including those alive at its start."""
    live = peak_bytes = 0
    inside = False
    for event in updates.events:
        if isinstance(event, Phase):
            inside = (event.name, event.update) == (phase, update)
        elif isinstance(event, Alloc | Free):
            size = updates.storages[event.storage].bytes
            live += size if isinstance(event, Alloc) else -size
        peak_bytes = max(peak_bytes, live) if inside else peak_bytes
    return peak_bytes


def live_at(updates: Trace, phase: str, update: int = 1) -> Counter[str]:
    """Return the bytes by part at the start of a phase."""
    live: Counter[str] = Counter()
    for event in updates.events:
        if isinstance(event, Alloc | Free):
            storage = updates.storages[event.storage]
            live[storage.part] += storage.bytes if isinstance(event, Alloc) else -storage.bytes
        elif isinstance(event, Phase) and (event.name, event.update) == (phase, update):
            return +live
    raise AssertionError(f"no phase {phase}")


def loading_peak(updates: Trace) -> int:
    """Return the most bytes that are allocated until the model is loaded."""
    live = largest = 0
    for event in updates.events:
        if isinstance(event, Alloc | Free):
            size = updates.storages[event.storage].bytes
            live += size if isinstance(event, Alloc) else -size
            largest = max(largest, live)
        elif isinstance(event, Phase) and event.name != "model":
            break
    return largest


LOSSES = 2 * 4
"""During the step the sum of the losses and their mean are in memory."""

GOLDEN = [
    # Weights and gradients, P each; the step is in place.
    (torch.optim.SGD, {"for-loop": 2 * P, "foreach": 2 * P, "fused": 2 * P}),
    # One more state.
    (with_momentum, {"for-loop": 3 * P, "foreach": 3 * P, "fused": 3 * P}),
    # Two states. for-loop: sqrt(), its quotient, and the denominator of the previous tensor, still referenced.
    # foreach: a denominator for every tensor. fused: no temporaries, but the step counts are on the device.
    (torch.optim.Adam, {"for-loop": 4 * P + 3 * L, "foreach": 5 * P, "fused": 4 * P + STEPS}),
    (torch.optim.AdamW, {"for-loop": 4 * P + 3 * L, "foreach": 5 * P, "fused": 4 * P + STEPS}),
    # One state. for-loop: sqrt(), with eps added in place, and that of the previous tensor. foreach: all of them.
    (torch.optim.RMSprop, {"for-loop": 3 * P + 2 * L, "foreach": 4 * P}),
    # The same, but foreach also allocates a product of every gradient and the learning rate. Fused is for CPUs alone.
    (torch.optim.Adagrad, {"for-loop": 3 * P + 2 * L, "foreach": 5 * P}),
    # A state for each row and each column. for-loop: their product and that of the previous tensor, the means of rows
    # and of columns, a mean over rows. foreach: all products, and a mean over rows of each.
    (torch.optim.Adafactor, {"for-loop": 2 * P + 2 * N * R + 2 * L + 2 * R + 4, "foreach": 3 * P + 2 * N * R + 4 * N}),
]


@pytest.mark.parametrize(("make", "expected"), GOLDEN, ids=lambda value: getattr(value, "__name__", ""))
def test_peak_of_each_optimizer_kernel(open_tracer: Any, make: Any, expected: dict[str, int]) -> None:
    tracer = open_tracer(make, Stack(make))
    peaks = {kernel: peak(trace(tracer, optimizer_kernel=kernel), "optimizer") for kernel in expected}
    expected = {kernel: size + LOSSES for kernel, size in expected.items()}
    assert peaks == expected
    default = "for-loop" if make is torch.optim.Adafactor else "foreach"
    assert peak(trace(tracer), "optimizer") == expected[default]  # torch's default on CUDA
    if "fused" not in expected:
        with pytest.raises(UsageError, match="has for-loop, foreach"):
            trace(tracer, optimizer_kernel="fused")


@pytest.mark.parametrize("name", ["NAdam", "RAdam", "Adamax", "ASGD", "Adadelta", "Rprop"])
def test_other_torch_optimizers_are_traced(open_tracer: Any, name: str) -> None:
    tracer = open_tracer(name, Stack(getattr(torch.optim, name)))
    for_loop, foreach = (
        peak(trace(tracer, optimizer_kernel=kernel), "optimizer") for kernel in ("for-loop", "foreach")
    )
    assert 2 * P < for_loop < foreach


def test_autocast_step_adds_only_the_scaler(open_tracer: Any) -> None:
    tracer = open_tracer(torch.optim.AdamW, Stack())
    updates = trace(tracer, precision="fp16", optimizer_kernel="for-loop")
    assert peak(updates, "optimizer") == 4 * P + 3 * L + 3 * 4 + LOSSES
    # Each layer saves for backward its weight in fp16, except the first layer, whose input needs no gradient, and its
    # input in fp16: the cast of the batch or the output of the previous layer.
    activations = live_at(updates, "backward")["activations"]
    assert activations == P // 2 - L // 2 + N * 2 * 8 * WIDTH + LOSS


def test_modules_in_fp32_use_their_own_weights(open_tracer: Any) -> None:
    tracer = open_tracer(torch.optim.AdamW, Stack())
    activations = live_at(trace(tracer, precision="fp16", fp32_modules="1"), "backward")["activations"]
    # The second layer saves no weight in fp16, and its input in fp32 instead of fp16.
    assert activations == P // 2 - 2 * (L // 2) + (N + 1) * 2 * 8 * WIDTH + LOSS
    with pytest.raises(UsageError, match="fp32_modules=1,7: Sequential has no such modules"):
        trace(tracer, precision="fp16", fp32_modules="1,7")


def test_fp16_weights_halve_the_step(open_tracer: Any) -> None:
    tracer = open_tracer("fp16", Stack(dtype=torch.float16))
    assert peak(trace(tracer, optimizer_kernel="for-loop"), "optimizer") == (4 * P + 3 * L) // 2 + LOSSES
    assert peak(trace(tracer, optimizer_kernel="foreach"), "optimizer") == 5 * P // 2 + LOSSES


class Blocks(Stack):
    """N blocks of two layers, from 8 x WIDTH values (A bytes) to 8 x 4 WIDTH (H bytes) and back."""

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


@pytest.mark.parametrize(("setting", "checkpointed"), [("no", 0), ("full", N), ("1", 1)])
def test_checkpointed_block_saves_only_its_input(open_tracer: Any, setting: str, checkpointed: int) -> None:
    """The first block's input is the batch, and the last one's output is freed; other blocks save ReLU's output."""
    updates = trace(open_tracer(Blocks, Blocks()), checkpointing=setting)
    assert live_at(updates, "backward")["activations"] == (N - 1) * A + (N - checkpointed) * H + LOSS


def test_casts_of_recomputation_are_freed_with_their_block(open_tracer: Any) -> None:
    updates = trace(open_tracer(Blocks, Blocks()), checkpointing="full", precision="fp16")
    live = live_at(updates, "optimizer")
    assert live["activations"] + live["temporaries"] < A


def test_too_many_checkpointed_blocks_is_an_error(open_tracer: Any) -> None:
    with pytest.raises(UsageError, match="has 4 blocks"):
        trace(open_tracer(Blocks, Blocks()), checkpointing="5")


def peak_weights(updates: Trace) -> dict[str, int]:
    """Return the peak bytes of weights in each phase of the measured update."""
    live, peaks, phase = 0, Counter[str](), ""
    for event in updates.events:
        if isinstance(event, Phase):
            phase = event.name if event.update else ""
        elif isinstance(event, Alloc | Free) and updates.storages[event.storage].part == "weights":
            size = updates.storages[event.storage].bytes
            live += size if isinstance(event, Alloc) else -size
        peaks[phase] = max(peaks[phase], live)
    return dict(peaks)


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.Adagrad])
def test_offloaded_optimizer_uses_no_device_memory(open_tracer: Any, make: Any) -> None:
    updates = trace(open_tracer(make, Stack(make)), offload="optimizer")
    assert peak(updates, "optimizer") == 2 * P + LOSSES
    assert live_at(updates, "end") == {"weights": P}


W = 4 * WIDTH * 4 * WIDTH
"""Bytes of one weight of a block; each block has two."""


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_offloaded_weights_are_moved_block_by_block(open_tracer: Any, precision: str) -> None:
    updates = trace(open_tracer(Blocks, Blocks()), offload="parameters", precision=precision)
    weights = peak_weights(updates)
    # Backward moves single weights; under autocast it uses their fp16 copies, which stay as activations. Between
    # updates no weight is on the device.
    assert (weights["forward"], weights["backward"]) == (2 * W, W if precision == "fp32" else 0)
    assert weights["optimizer"] == 0 and live_at(updates, "optimizer")["gradients"] == 0
    activations = live_at(updates, "backward")["activations"]
    if precision == "fp32":
        assert activations == (N - 1) * A + N * H + LOSS
    else:  # including the first weight of the first block: its copy is not a leaf, since the weight was moved
        assert activations > N * W - W // 2


def test_recomputation_moves_the_whole_block_for_backward(open_tracer: Any) -> None:
    updates = trace(open_tracer(Blocks, Blocks()), offload="parameters", checkpointing="full")
    weights = peak_weights(updates)
    assert (weights["forward"], weights["backward"], weights["optimizer"]) == (2 * W, 2 * W, 0)
    assert live_at(updates, "backward")["activations"] == (N - 1) * A + LOSS


def test_offloaded_weights_need_blocks(open_tracer: Any) -> None:
    with pytest.raises(UsageError, match="no blocks"):
        trace(open_tracer(torch.optim.AdamW, Stack()), offload="parameters")


class FrozenBlocks(Blocks):
    """Blocks that are not trained, after a layer that is."""

    def model(self) -> nn.Module:
        first = nn.Linear(WIDTH, WIDTH, bias=False)
        return nn.Sequential(first, *super().model().requires_grad_(False))  # type: ignore[misc]


@pytest.mark.parametrize("checkpointing", ["no", "full"])
def test_streamed_blocks_share_two_slots(open_tracer: Any, checkpointing: str) -> None:
    tracer = open_tracer(FrozenBlocks, FrozenBlocks())
    resident = trace(tracer, checkpointing=checkpointing)
    streamed = trace(tracer, checkpointing=checkpointing, streamed_blocks=N)
    some = trace(tracer, checkpointing=checkpointing, streamed_blocks=3)
    for phase in ("forward", "backward", "optimizer"):
        assert peak_weights(resident)[phase] == N * 2 * W + L
        assert peak_weights(streamed)[phase] == 2 * 2 * W + L
        assert peak_weights(some)[phase] == (1 + 2) * 2 * W + L
        assert peak(resident, phase) - peak(streamed, phase) == (N - 2) * 2 * W
    assert streamed.host_bytes == resident.host_bytes
    assert resident.block_bytes == streamed.block_bytes == (2 * W,) * N
    assert [use.block for use in streamed.block_uses] == [*range(N)] and streamed.block_uses == resident.block_uses


class NamedBlocks(Blocks):
    """The same blocks with names, before a head, which is not quantized."""

    def model(self) -> nn.Module:
        names = ("up", "activation", "down")
        blocks = (nn.Sequential(OrderedDict(zip(names, block, strict=True))) for block in super().model())
        return nn.Sequential(*blocks, nn.Linear(WIDTH, 4, bias=False))


@pytest.mark.slow
def test_streamed_4_bit_weights_take_their_scales_along() -> None:
    pytest.importorskip("peft")
    loaded, _ = finding.choose(NamedBlocks(), {"quantization": "nf4", "lora_r": 2, "lora_targets": "up,down"})
    with Tracer(loaded) as tracer:
        resident, streamed = (trace(tracer, streamed_blocks=count) for count in (0, N))
    difference = live_at(resident, "forward") - live_at(streamed, "forward")
    block = 2 * (W // 4 // 2 + W // 4 // 64 * 4)  # half a byte for each value, four bytes for each 64 values
    assert difference.total() == pytest.approx((N - 2) * block, abs=1024)
    assert sum(streamed.block_bytes) == N * block
    # The last streamed block is loaded beside what stays on the device; no earlier one is there still.
    saved = loading_peak(resident) - loading_peak(streamed)
    assert saved >= (N - 2) * block


@pytest.mark.parametrize(
    ("options", "states"),
    [
        # Two states of one byte per value, each with an fp32 scale per 256 values, and two shared tables.
        ({"bits": 8}, 2 * (P // 4 + P // 256) + 2 * 4 * 256),
        # Weights of 65,536 values are too small to be paged.
        ({"bits": 32, "paged": True}, 2 * P),
        ({"bits": 8, "paged": True}, 2 * (P // 4 + P // 256) + 2 * 4 * 256),
    ],
)
def test_bytes_of_bitsandbytes_states(open_tracer: Any, options: dict[str, Any], states: int) -> None:
    tracer = open_tracer(str(options), Stack(functools.partial(BlockwiseAdamW, **options)))
    assert peak(trace(tracer), "optimizer") == 2 * P + states + LOSSES


def test_large_paged_states_use_no_device_memory(open_tracer: Any) -> None:
    class Wide(Stack):
        def model(self) -> nn.Module:
            return nn.Sequential(nn.Linear(WIDTH, 512, bias=False), nn.Linear(512, 4, bias=False))

    for bits, scales in ((32, 0), (8, 2 * 4 * 512)):
        recipe = Wide(functools.partial(BlockwiseAdamW, bits=bits, paged=True))
        large, small = 4 * WIDTH * 512, 4 * 512 * 4
        updates = trace(open_tracer(f"wide {bits}", recipe))
        # The small weight's states are fp32; the large weight's scales and the tables stay on the device.
        states = 2 * small + (scales + 2 * 4 * 256 if bits == 8 else 0)
        assert peak(updates, "optimizer") == 2 * (large + small) + states + LOSSES
