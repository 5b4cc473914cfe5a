"""Copies of streamed blocks run ahead of the computation: updates with slow copies, beside the schedule's prediction.

    python -m benchmarks.streaming.overlap [--updates 5] [--part orders] [--json OUT]

A thread that sleeps stands for the engine of a GPU that copies, and a sleep in each forward and backward of a block
for its kernels, since a CPU that copied and computed at the same time would slow itself down. What is tested is which
copies are started when (`techniques/streaming`), with its real hooks, in training. `ratio` is the time of the copy of
a block over that of its forward; its backward takes twice as long as its forward. "one after the other" is the same
with copies that the computation waits for. The prediction knows the times of a forward and of a copy alone, and the
schedule.

The second table has updates of several microbatches, whose blocks are recomputed, in both orders (`stream_order`).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from shoestring.techniques import checkpointing
from shoestring.techniques.streaming import host_memory, placement
from shoestring.techniques.streaming.block_order import BlockOrder
from shoestring.techniques.streaming.host_weights import HostWeights
from shoestring.techniques.streaming.schedule import SLOTS, SlotContents, copies, uses_of_update
from shoestring.techniques.streaming.slots import PlainSlot
from shoestring.techniques.streaming.stream import Stream, stream_blocks
from shoestring.training.engine.precision import mixed_precision
from shoestring.training.engine.update import add_gradients

RESULTS = Path(__file__).parents[1] / "results"
BLOCKS = 10
FORWARD = 0.02
"""Seconds of the forward of a block."""
BACKWARD = 2 * FORWARD
RATIOS = (0.2, 0.5, 1.0, 1.5, 2.0, 3.0)
WIDTH = 64
MICROBATCHES = (4, 16)
ORDER_RATIOS = (2.0, 8.0)


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:  # noqa: ARG004
        time.sleep(FORWARD)
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # noqa: ARG004
        time.sleep(BACKWARD)
        return gradients[0]


class Block(nn.Module):
    """A frozen layer with a weight that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(WIDTH, WIDTH).requires_grad_(False), nn.Parameter(torch.ones(WIDTH))

    def forward(self, values: Tensor) -> Tensor:
        """Return the outputs after the time of a kernel."""
        sleep: Callable[[Tensor], Tensor] = _Sleep.apply
        return torch.tanh(self.layer(sleep(values))) * self.scale


class ThrottledSlot(PlainSlot):
    """A slot to which one thread for all slots copies, in `seconds` for a block."""

    def __init__(self, size: int, thread: ThreadPoolExecutor, seconds: float, *, waits: bool) -> None:
        super().__init__(torch.empty(size, dtype=torch.uint8))
        self._thread, self._seconds, self._waits = thread, seconds, waits
        self._copy: Future[None] | None = None

    def fill(self, source: Tensor) -> None:
        """Start to copy; if the slot `waits`, until it is done."""
        self._copy = self._thread.submit(self._fill_slowly, source)
        if self._waits:
            self._copy.result()

    def _fill_slowly(self, source: Tensor) -> None:
        time.sleep(self._seconds)
        super().fill(source)

    def wait(self) -> None:
        """Wait for the latest copy."""
        if self._copy:
            self._copy.result()


def updates(count: int, make_slot: Callable[[int], ThrottledSlot] | None) -> tuple[list[float], list[Tensor]]:
    """Return the seconds of each update after the first, and the trained weights; without slots, of resident blocks."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    if make_slot:
        blocks, tensors = placement.choose(model, object(), BLOCKS)
        weights = [HostWeights(own, host_memory.allocate) for own in tensors]
        stream_blocks(blocks, Stream(weights, [make_slot(size) for size in placement.slot_sizes(weights)]))
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer, seconds = torch.optim.SGD(trained, lr=0.1), []
    for _ in range(count + 1):
        started = time.monotonic()
        model(torch.ones(2, WIDTH, requires_grad=True)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.monotonic() - started)
    return seconds[1:], trained


def updates_in_order(
    count: int, microbatches: int, order: str, make_slot: Callable[[int], ThrottledSlot] | None
) -> tuple[list[float], list[Tensor]]:
    """Return what `updates` does for several microbatches, one after the other or by block."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    run_all = None
    if make_slot:
        blocks, tensors = placement.choose(model, object(), BLOCKS)
        weights = [HostWeights(own, host_memory.allocate) for own in tensors]
        stream = Stream(weights, [make_slot(size) for size in placement.slot_sizes(weights)])
        stream_blocks(blocks, stream)
        run_all = BlockOrder(stream).run if order == "block" else None
    checkpointing.apply(model, object(), "full")
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer, seconds = torch.optim.SGD(trained, lr=0.1), []
    batches = [(torch.full((2, WIDTH), 1.0 + number), 2) for number in range(microbatches)]
    for _ in range(count + 1):
        started = time.monotonic()
        add_gradients(
            model,
            lambda model, batch: model(batch).square().mean(),
            batches,
            samples=2 * microbatches,
            mixed_precision=mixed_precision("fp32", torch.device("cpu")),
            run_all=run_all,
        )
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.monotonic() - started)
    return seconds[1:], trained


def measure_orders(count: int) -> list[dict[str, Any]]:
    """Return a row for each number of microbatches and each of some ratios."""
    rows = []
    for microbatches in MICROBATCHES:
        resident, expected = updates_in_order(count, microbatches, "microbatch", None)
        for ratio in ORDER_RATIOS:
            row: dict[str, Any] = {"microbatches": microbatches, "ratio": ratio, "resident seconds": median(resident)}
            for order in ("microbatch", "block"):
                with ThreadPoolExecutor(1) as thread:
                    make_slot = partial(ThrottledSlot, thread=thread, seconds=ratio * FORWARD, waits=False)
                    seconds, trained = updates_in_order(count, microbatches, order, make_slot)
                assert all(map(torch.equal, trained, expected))
                row[f"{order} seconds"] = median(seconds)
                row[f"{order} over resident"] = median(seconds) / median(resident)
            print(
                f"{microbatches} microbatches, copy {ratio:.0f} forwards: {row['microbatch over resident']:.2f} times "
                f"resident one after the other, {row['block over resident']:.2f} by block"
            )
            rows.append(row)
    return rows


def predicted(copy: float) -> float:
    """Return the seconds of an update in the steady state, from the schedule, with one engine that copies in order."""
    uses, contents = uses_of_update(BLOCKS), SlotContents(BLOCKS, SLOTS)
    now = is_free = 0.0
    done: dict[int, float] = {}
    for _ in range(3):
        update_started = now
        started_copies = copies(uses, contents)
        for index, (block, pass_) in enumerate(uses):
            for at_end in (False, True):
                if at_end:
                    now = max(now, done.get(block, 0.0)) + (FORWARD if pass_ == "forward" else BACKWARD)
                for each in started_copies:
                    if (each.use, each.at_end) == (index, at_end):
                        is_free = max(is_free, now) + copy
                        done[each.block] = is_free
    return now - update_started


def measure(count: int) -> list[dict[str, Any]]:
    """Return a row for each ratio."""
    rows = []
    resident, expected = updates(count, None)
    for ratio in RATIOS:
        row: dict[str, Any] = {"ratio": ratio, "resident seconds": median(resident)}
        for name, waits in (("streamed", False), ("one after the other", True)):
            with ThreadPoolExecutor(1) as thread:
                make_slot = partial(ThrottledSlot, thread=thread, seconds=ratio * FORWARD, waits=waits)
                seconds, trained = updates(count, make_slot)
            assert all(map(torch.equal, trained, expected))
            row[f"{name} seconds"] = median(seconds)
            row[f"{name} over resident"] = median(seconds) / median(resident)
        row["predicted over resident"] = predicted(ratio * FORWARD) / (BLOCKS * (FORWARD + BACKWARD))
        row["error"] = row["streamed over resident"] / row["predicted over resident"] - 1
        print(
            f"copy {ratio:3.1f} forwards: {row['streamed over resident']:.2f} times resident, predicted "
            f"{row['predicted over resident']:.2f}, one after the other {row['one after the other over resident']:.2f}"
        )
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--json", type=Path, default=RESULTS / "streaming_overlap.json")
    parser.add_argument("--part", choices=("all", "rows", "orders"), default="all", help="the others stay as they are")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    content: dict[str, Any] = {"blocks": BLOCKS, "forward seconds": FORWARD, "backward seconds": BACKWARD}
    if arguments.part != "all":
        content = json.loads(arguments.json.read_text())
    if arguments.part != "orders":
        content["load before"] = os.getloadavg()[0]
        content["rows"] = measure(arguments.updates)
        content["load after"] = os.getloadavg()[0]
    if arguments.part != "rows":
        content["orders"] = measure_orders(arguments.updates)
        content["load after orders"] = os.getloadavg()[0]
    arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
