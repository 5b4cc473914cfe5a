"""Exhaust this machine's NVIDIA GPU for real, in each phase of an update, and see what recovery leaves behind.

    python benchmarks/gpu/out_of_memory.py [--json OUT] [--dry-run]

The process may take what a T4 has (14.56 GiB). Each microbatch needs memory in proportion to its samples, 64 of them
far too much: recovery halves until it fits. Measured are the bytes in live tensors before the update and after each
recovery, which must be equal, and whether the weights end in the same bits as with the smaller size from the start.
`--dry-run` does so on the CPU with a limit that is only counted. Status 1 where something differs, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shoestring.data.seeding import seed_all
from shoestring.engine.memory import HalfDoneError, alloc_retries, free
from shoestring.engine.precision import mixed_precision
from shoestring.engine.recovery import OutOfMemory, Recovering, forget
from shoestring.engine.update import UpdateResult, update
from shoestring.hardware.catalog import DEVICES
from shoestring.units import MIB, bytes_text

LIMIT_BYTES = DEVICES["t4"].memory_bytes
SAMPLES = 64
BYTES_A_SAMPLE = 600 * MIB
"""64 of them are 37.5 GiB, 16 are 9.4 GiB: two halvings."""
PHASES = ("forward", "backward", "optimizer", "evaluation")
PRECISIONS = ("fp32", "fp16")


@dataclass(kw_only=True)
class Row:
    """One phase in one precision; bytes are those in live tensors."""

    phase: str
    precision: str
    failures: list[str] = field(default_factory=list)
    tried: list[int] = field(default_factory=list)
    before_bytes: int = 0
    after_bytes: list[int] = field(default_factory=list)
    """After each recovery."""
    alloc_retries: int = 0
    same_bits: bool = False
    """As with the smaller size from the start."""

    @property
    def good(self) -> bool:
        return bool(self.failures) and self.same_bits and set(self.after_bytes) == {self.before_bytes}


class Needs(torch.autograd.Function):
    """Passes its input on, and takes memory for a moment or until backward, as a layer would."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, machine: Machine, forward_bytes: int, backward_bytes: int) -> Tensor:
        ctx.machine, ctx.backward_bytes = machine, backward_bytes
        ctx.save_for_backward(machine.take(forward_bytes))
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        ctx.machine.take(ctx.backward_bytes)
        return gradient, None, None, None


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A GPU whose memory is limited for this process, or a CPU on which the limit is only counted."""

    device: torch.device
    limit_bytes: int

    def begin(self) -> None:
        if self.device.type == "cuda":
            total = torch.cuda.get_device_properties(self.device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, self.limit_bytes / total))

    def take(self, size: int) -> Tensor:
        """Memory of so many bytes. Raises torch.OutOfMemoryError where there are not so many."""
        if self.device.type == "cuda":
            return torch.empty(size, dtype=torch.uint8, device=self.device)
        if size > self.limit_bytes:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {bytes_text(size)}")
        return torch.empty(0, dtype=torch.uint8)

    def allocated(self) -> int:
        if self.device.type != "cuda":
            return 0
        torch.cuda.synchronize(self.device)
        return torch.cuda.memory_allocated(self.device)


class Trial:
    """A small model with BatchNorm and dropout whose `phase` needs too much."""

    def __init__(self, machine: Machine, phase: str, precision: str) -> None:
        seed_all(0)
        layers = nn.Linear(256, 256), nn.BatchNorm1d(256), nn.Dropout(0.3), nn.Linear(256, 1)
        self.machine, self.phase, self.needs = machine, "", 0
        self.model = nn.Sequential(*layers).to(machine.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.mixed_precision = mixed_precision(precision, machine.device)  # type: ignore[arg-type]
        self.inputs = torch.randn(SAMPLES, 256).to(machine.device)
        # What libraries and the optimizer keep for good comes with the first update and is no part of the question.
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
        size = BYTES_A_SAMPLE * len(batch)
        forward = size if self.phase in ("forward", "evaluation") else 0
        hidden = Needs.apply(hidden, self.machine, forward, size if self.phase == "backward" else 0)
        return model[3](hidden).square().mean()  # type: ignore[index]

    def _before_step(self, *_: object) -> None:
        if self.phase == "optimizer":
            self.machine.take(BYTES_A_SAMPLE * SAMPLES)

    def weights(self) -> list[Tensor]:
        return [value.clone() for value in self.model.state_dict().values()]


def measure(machine: Machine, phase: str, precision: str) -> Row:
    """One update, or evaluation, that exhausts the memory in `phase`."""
    row = Row(phase=phase, precision=precision)
    trial = Trial(machine, phase, precision)
    retries, row.before_bytes = alloc_retries(), machine.allocated()

    def told(event: OutOfMemory) -> None:
        row.failures.append(event.failure)
        row.tried.append(event.micro_batch)
        row.after_bytes.append(machine.allocated())

    recovering = Recovering(trial.model, trial.optimizer, trial.mixed_precision, on_out_of_memory=told)
    attempt = trial.evaluation if phase == "evaluation" else trial.update
    try:
        _, fitted = recovering.run(attempt, SAMPLES)
    except HalfDoneError as error:
        row.failures.append(error.message)
        fitted = 0
    if not fitted:
        forget(trial.model, trial.optimizer, trial.mixed_precision)
        free()
        row.tried.append(SAMPLES)
        row.after_bytes.append(machine.allocated())
        row.same_bits = True  # weights come from the last checkpoint
    else:
        row.same_bits = _same_bits(machine, phase, precision, trial, fitted)
    row.alloc_retries = alloc_retries() - retries
    return row


def _same_bits(machine: Machine, phase: str, precision: str, trial: Trial, fitted: int) -> bool:
    undisturbed = Trial(machine, phase, precision)
    (undisturbed.evaluation if phase == "evaluation" else undisturbed.update)(fitted)
    return all(torch.equal(a, b) for a, b in zip(trial.weights(), undisturbed.weights(), strict=True))


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options().parse_args(arguments)
    cuda = torch.cuda.is_available() and not options.dry_run
    if not cuda and not options.dry_run:
        print(
            "error: there is no NVIDIA GPU here to exhaust\nhint: --dry-run tries everything but the GPU",
            file=sys.stderr,
        )
        return 2
    machine = Machine(device=torch.device("cuda" if cuda else "cpu"), limit_bytes=LIMIT_BYTES)
    machine.begin()
    rows = [measure(machine, phase, precision) for phase in PHASES for precision in PRECISIONS]
    for row in rows:
        print(_line(row))
    name = torch.cuda.get_device_name(machine.device) if cuda else "cpu, counted only"
    content = {"device": name, "torch": torch.__version__, "limit_bytes": LIMIT_BYTES}
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**content, "rows": [{**asdict(row), "good": row.good} for row in rows]}, indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")
    return 0 if all(row.good for row in rows) else 1


def _line(row: Row) -> str:
    after = ", ".join(bytes_text(size) for size in row.after_bytes)
    return (
        f"{'good' if row.good else 'WRONG':<6}{row.phase:<12}{row.precision:<6}failed with {row.tried}: "
        f"{bytes_text(row.before_bytes)} in tensors before, {after} after; {row.alloc_retries} allocator retries; "
        f"{'the same bits' if row.same_bits else 'OTHER BITS'}"
    )


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, default=None, help="where the rows go as JSON")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, with a limit that is only counted")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
