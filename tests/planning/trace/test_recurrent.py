"""The memory of recurrent layers on a GPU.

The bytes, and their order, are those that the allocator of PyTorch 2.10 was asked for on a simulated T4, whose sizes of
cuDNN's workspace and reserve space are modeled as those of the trace.
"""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from shoestring.base.settings import Precision, Settings
from shoestring.hardware.targets import find
from shoestring.planning.trace import Tracer
from shoestring.planning.trace.record import Alloc, Event, Free, Phase, Trace
from shoestring.recipe import finding

ROWS, STEPS, WIDTH, UNITS = 256, 20, 29, 128
WEIGHTS = [59_392, 262_144, 2048, 2048] * 2
"""Bytes of the weights and biases of each direction, in fp32."""


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(WIDTH, UNITS, batch_first=True, bidirectional=True)

    def forward(self, batch: Tensor) -> Tensor:
        outputs: Tensor = self.layer(batch)[0]
        return outputs


class Encoding:
    def model(self) -> nn.Module:
        return Encoder()

    def batch(self, size: int) -> Tensor:
        return torch.zeros(size, STEPS, WIDTH)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        loss: Tensor = model(batch).mean()
        return loss


TraceEncoding = Callable[[Precision], Trace]


@pytest.fixture(scope="module")
def trace() -> Iterator[TraceEncoding]:
    with Tracer(finding.find(Encoding())) as tracer:
        yield lambda precision: tracer.trace(
            Settings(micro_batch=ROWS, precision=precision, checkpointing="no"),
            accumulate=1,
            device=find("t4").device,
        )


def phase_events(trace: Trace, name: str, update: int) -> list[Event]:
    start = next(n for n, e in enumerate(trace.events) if isinstance(e, Phase) and (e.name, e.update) == (name, update))
    end = next(n for n, e in enumerate(trace.events) if isinstance(e, Phase) and n > start)
    return list(trace.events[start + 1 : end])


def allocated(trace: Trace, name: str, update: int = 1) -> list[int]:
    """Return the bytes of more than 1 KiB that are allocated in a phase, in order."""
    events = phase_events(trace, name, update)
    sizes = [trace.storages[event.storage].bytes for event in events if isinstance(event, Alloc)]
    return [size for size in sizes if size > 1024]


def test_weights_are_copied_to_one_buffer_when_they_are_loaded(trace: TraceEncoding) -> None:
    encoding = trace("fp32")
    steps = [
        encoding.storages[event.storage].bytes * (1 if isinstance(event, Alloc) else -1)
        for event in phase_events(encoding, "model", 0)
        if isinstance(event, Alloc | Free)
    ]
    assert steps == [*WEIGHTS, sum(WEIGHTS), *(-size for size in WEIGHTS)]


def test_fp32(trace: TraceEncoding) -> None:
    state, workspace = 262_144, 20_971_520
    encoding = trace("fp32")
    # The batch; the states; the input with time first; output and states; workspace; reserve space.
    forward = [593_920, state, state, 593_920, 5_242_880, state, state, workspace, 31_457_280]
    assert allocated(encoding, "forward") == forward
    # Zeros for the gradients of the states; input and gradient with time first; gradients; workspace; then the input,
    # the gradients of all weights, which remain, and a workspace again.
    zeros_and_copies = [state, state, 593_920, 5_242_880]
    gradients = [593_920, state, state, workspace, 593_920, sum(WEIGHTS), workspace]
    # First the gradient of the mean.
    assert allocated(encoding, "backward") == [5_242_880, *zeros_and_copies, *gradients]


def test_fp16(trace: TraceEncoding) -> None:
    state, weights, workspace = 131_072, sum(WEIGHTS) // 2, 10_485_760
    encoding = trace("fp16")
    # All weights are cast to one buffer, before the states and the input.
    casts = [weights, state, state, 296_960]
    forward = [593_920, 2 * state, 2 * state, *casts, 296_960, 2_621_440, state, state, workspace, 15_728_640]
    assert allocated(encoding, "forward")[: len(forward)] == forward
    backward = allocated(encoding, "backward")
    start = backward.index(weights)
    # The gradients of all weights, which are cast one by one, the last one first.
    assert backward[start : start + 10] == [weights, workspace, *reversed(WEIGHTS)]


def test_only_gathered_weights_are_in_other_buffers() -> None:
    with Tracer(finding.find(Encoding())) as tracer:
        settings = Settings(micro_batch=ROWS, precision="fp32", checkpointing="no", sharding="zero3")
        encoding = tracer.trace(settings, accumulate=1, device=find("t4").device, gpus=2)
    # FSDP2 does not flatten weights, so each call copies them.
    assert sum(WEIGHTS) not in allocated(encoding, "model", 0)
    assert allocated(encoding, "forward").count(sum(WEIGHTS)) == 2  # the all-gather buffer and the copy
