"""Exhaust the memory of this machine's NVIDIA GPU in each phase of an update and check the recovery.

    python -m benchmarks.gpu.out_of_memory [--json OUT] [--dry-run]

The process is limited to the memory of a T4 (14.56 GiB). Each microbatch needs memory in proportion to its samples, and
64 samples need far too much, so recovery halves the microbatch until it fits. The bytes in live tensors before the
update and after each recovery must be equal, and the weights must have the same bits as with the smaller microbatch
from the start. `--dry-run` runs on the CPU with a simulated limit. The exit status is 1 if something differs, and 2
without a GPU.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from benchmarks.gpu import harness
from torch import Tensor, nn

from shoestring.base.units import MIB, bytes_text
from shoestring.hardware.catalog import DEVICES
from shoestring.training.data.seeding import seed_all
from shoestring.training.engine.memory import HalfDoneError, alloc_retries, free_unused_memory
from shoestring.training.engine.precision import mixed_precision
from shoestring.training.engine.recovery import OutOfMemory, Recovering, discard_attempt
from shoestring.training.engine.update import UpdateResult, update

LIMIT_BYTES = DEVICES["t4"].memory_bytes
SAMPLES = 64
BYTES_PER_SAMPLE = 600 * MIB
"""64 of them are 37.5 GiB, 16 are 9.4 GiB: two halvings."""
PHASES = ("forward", "backward", "optimizer", "evaluation")
PRECISIONS = ("fp32", "fp16")


@dataclass(kw_only=True)
class Row:
    """The result of one phase in one precision; bytes are those in live tensors."""

    phase: str
    precision: str
    failures: list[str] = field(default_factory=list)
    tried: list[int] = field(default_factory=list)
    before_bytes: int = 0
    """At the start of the first attempt, when the recovery has saved the buffers."""
    after_bytes: list[int] = field(default_factory=list)
    """After each recovery: at the start of each further attempt."""
    alloc_retries: int = 0
    same_bits: bool = False
    """Whether the weights equal those with the smaller microbatch from the start."""

    @property
    def good(self) -> bool:
        return bool(self.failures) and self.same_bits and set(self.after_bytes) == {self.before_bytes}


class MemoryHungry(torch.autograd.Function):
    """Returns its input and allocates memory, temporarily or until backward, as a layer would."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, machine: Machine, forward_bytes: int, backward_bytes: int) -> Tensor:
        ctx.machine, ctx.backward_bytes = machine, backward_bytes
        ctx.save_for_backward(machine.allocate(forward_bytes))
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        ctx.machine.allocate(ctx.backward_bytes)
        return gradient, None, None, None


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A GPU whose memory is limited for this process, or a CPU with a simulated limit."""

    device: torch.device
    limit_bytes: int

    def set_limit(self) -> None:
        if self.device.type == "cuda":
            total = torch.cuda.get_device_properties(self.device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, self.limit_bytes / total))

    def allocate(self, size: int) -> Tensor:
        """Allocate `size` bytes. Raises torch.OutOfMemoryError if they are not available."""
        if self.device.type == "cuda":
            return torch.empty(size, dtype=torch.uint8, device=self.device)
        if size > self.limit_bytes:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {bytes_text(size)}")
        return torch.empty(0, dtype=torch.uint8)

    def allocated(self) -> int:
        """Return the bytes in live tensors; on a CPU those that Python refers to."""
        if self.device.type != "cuda":
            storages = [value.untyped_storage() for value in gc.get_objects() if issubclass(type(value), Tensor)]
            return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
        torch.cuda.synchronize(self.device)
        return torch.cuda.memory_allocated(self.device)

    def allocated_after_failure(self, expected: int | None = None) -> int:
        """Return the bytes in live tensors, after at most a second in which they may fall to those `expected`.

        Autograd's thread frees the graph of a backward pass that failed after the error has reached this thread.
        """
        end = time.monotonic() + 1
        while (size := self.allocated()) != expected and expected is not None and time.monotonic() < end:
            time.sleep(0.01)
        return size


class Trial:
    """A small model with BatchNorm and dropout that needs too much memory in `phase`."""

    def __init__(self, machine: Machine, phase: str, precision: str) -> None:
        seed_all(0)
        layers = nn.Linear(256, 256), nn.BatchNorm1d(256), nn.Dropout(0.3), nn.Linear(256, 1)
        self.machine, self.phase, self.needs = machine, "", 0
        self.model = nn.Sequential(*layers).to(machine.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.mixed_precision = mixed_precision(precision, machine.device)  # type: ignore[arg-type]
        self.inputs = torch.randn(SAMPLES, 256).to(machine.device)
        # The first update makes the permanent allocations of libraries and the optimizer, which are not measured.
        self.update(SAMPLES // 4)
        self.phase = phase
        self.optimizer.register_step_pre_hook(self._before_step)

    def update(self, micro_batch: int) -> UpdateResult:
        seed_all(1)
        return update(
            self.model,
            self.optimizer,
            self.loss,
            ((piece, len(piece)) for piece in self.inputs.split(micro_batch)),
            samples=SAMPLES,
            mixed_precision=self.mixed_precision,
            clip_norm=1.0,
        )

    def evaluation(self, micro_batch: int) -> float:
        with torch.no_grad():
            return sum(float(self.loss(self.model, piece)) for piece in self.inputs.split(micro_batch))

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        hidden = model[:3](batch)  # type: ignore[index]
        size = BYTES_PER_SAMPLE * len(batch)
        forward = size if self.phase in ("forward", "evaluation") else 0
        hidden = MemoryHungry.apply(hidden, self.machine, forward, size if self.phase == "backward" else 0)
        return model[3](hidden).square().mean()  # type: ignore[index]

    def _before_step(self, *_: object) -> None:
        if self.phase == "optimizer":
            self.machine.allocate(BYTES_PER_SAMPLE * SAMPLES)

    def weights(self) -> list[Tensor]:
        return [value.clone() for value in self.model.state_dict().values()]


def measure(machine: Machine, phase: str, precision: str) -> Row:
    """Run one update, or evaluation, that exhausts the memory in `phase`."""
    gc.collect()  # the previous trial refers to itself
    row = Row(phase=phase, precision=precision)
    trial = Trial(machine, phase, precision)
    retries = alloc_retries()
    bytes_at_start: list[int] = []

    def record_out_of_memory(event: OutOfMemory) -> None:
        row.failures.append(event.failure)
        row.tried.append(event.micro_batch)

    def attempt(micro_batch: int) -> UpdateResult | float:
        if len(bytes_at_start) == len(row.tried):  # otherwise the attempt is repeated with a smaller loss scale
            bytes_at_start.append(machine.allocated_after_failure(*bytes_at_start[:1]))
        return trial.evaluation(micro_batch) if phase == "evaluation" else trial.update(micro_batch)

    recovering = Recovering(trial.model, trial.optimizer, trial.mixed_precision, on_out_of_memory=record_out_of_memory)
    try:
        _, fitting_micro_batch = recovering.run(attempt, SAMPLES)
    except HalfDoneError as error:
        row.failures.append(error.message)
        fitting_micro_batch = 0
    if not fitting_micro_batch:
        discard_attempt(trial.model, trial.optimizer, trial.mixed_precision)
        free_unused_memory()
        row.tried.append(SAMPLES)
        bytes_at_start.append(machine.allocated())
        row.same_bits = True  # weights come from the last checkpoint
    else:
        row.same_bits = _same_bits(machine, phase, precision, trial, fitting_micro_batch)
    row.before_bytes, *row.after_bytes = bytes_at_start
    row.alloc_retries = alloc_retries() - retries
    return row


def _same_bits(machine: Machine, phase: str, precision: str, trial: Trial, fitting_micro_batch: int) -> bool:
    reference = Trial(machine, phase, precision)
    (reference.evaluation if phase == "evaluation" else reference.update)(fitting_micro_batch)
    return all(torch.equal(a, b) for a, b in zip(trial.weights(), reference.weights(), strict=True))


def main(arguments: Sequence[str] | None = None) -> int:
    options = harness.build_parser(__doc__, file="gpu_out_of_memory.json", seconds=60).parse_args(arguments)
    selection = harness.select_cases(dry_run=options.dry_run)
    if selection is None:
        return 2
    _, device, kind = selection
    machine = Machine(device=torch.device(kind), limit_bytes=LIMIT_BYTES)
    machine.set_limit()
    rows = []
    for phase in PHASES:
        for precision in PRECISIONS:
            rows.append(measure(machine, phase, precision))
            print(_format_row(rows[-1]), flush=True)
            content = {"limit_bytes": LIMIT_BYTES, "rows": [{**asdict(row), "good": row.good} for row in rows]}
            harness.write_results(options.json, device, content)
    return 0 if all(row.good for row in rows) else 1


def _format_row(row: Row) -> str:
    after = ", ".join(bytes_text(size) for size in row.after_bytes)
    return (
        f"{'good' if row.good else 'WRONG':<6}{row.phase:<12}{row.precision:<6}failed with microbatch {row.tried}: "
        f"{bytes_text(row.before_bytes)} in tensors before, {after} after; {row.alloc_retries} allocator retries; "
        f"{'the same bits' if row.same_bits else 'OTHER BITS'}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
