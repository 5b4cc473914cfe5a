"""The fastest settings that fit, for a fixed effective batch."""

from collections.abc import Iterator
from dataclasses import dataclass

from shoestring.errors import QuestionError
from shoestring.estimate.memory import Breakdown, memory
from shoestring.estimate.time import Seconds, update_seconds
from shoestring.hardware.catalog import Target
from shoestring.recipe import LoadedRecipe
from shoestring.settings import Settings
from shoestring.trace import Tracer
from shoestring.trace.record import Trace

CLOSE = 1.1
"""Predicted times nearer than this are a tie: no prediction without a measurement tells them apart."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Settings that leave nothing open, with what they cost."""

    settings: Settings
    trace: Trace
    memory: Breakdown
    time: Seconds | None
    """None on a device whose rates nobody knows."""

    @property
    def seconds(self) -> float:
        """Predicted seconds of an update; 0 where no rate is known, so that all are equal."""
        return self.time.value if self.time else 0.0


def search(tracer: Tracer, loaded: LoadedRecipe, target: Target, wanted: Settings) -> list[Candidate]:
    """Candidates, the best first: those that fit by time, then those that do not by memory.

    What `wanted` fixes stays fixed; what it leaves open is chosen. Of each precision that the device has, microbatches
    are halved from the effective batch down to the first that fits; where none does, once more with every block's
    activations computed again in backward.
    """
    precisions = (wanted.precision,) if wanted.precision else target.device.precisions
    candidates = []
    for precision in precisions:
        for settings in _attempts(wanted.replace(precision=precision), loaded.effective_batch):
            try:
                candidates.append(candidate(tracer, loaded, target, settings))
            except QuestionError:
                if wanted.checkpointing or settings.checkpointing == "no":
                    raise
                break  # the model has no blocks that could be computed again
            if candidates[-1].memory.fits:
                break
    quickest = min((item.seconds for item in candidates if item.memory.fits), default=0.0)

    def rank(item: Candidate) -> tuple[bool, float]:
        if not item.memory.fits:
            return (True, item.memory.high_bytes)
        # sorted() is stable, so among equals the device's own order of precisions holds: fp32 needs no loss scaling.
        return (False, 0.0 if item.seconds <= quickest * CLOSE else item.seconds)

    return sorted(candidates, key=rank)


def candidate(tracer: Tracer, loaded: LoadedRecipe, target: Target, settings: Settings, *, gpus: int = 1) -> Candidate:
    """The cost of settings that leave neither microbatch nor precision open, on each of `gpus` GPUs of the target.

    The GPUs divide the effective batch. The time leaves out what they send each other.
    """
    assert settings.micro_batch is not None and settings.precision is not None
    microbatches = -(-loaded.effective_batch // (gpus * settings.micro_batch))
    # Microbatches are as equal as possible, so the largest may be smaller than the setting allows.
    traced = settings.replace(micro_batch=-(-loaded.effective_batch // (gpus * microbatches)))
    trace = tracer.trace(traced, accumulate=microbatches, device=target.device, gpus=gpus)
    return Candidate(
        settings=settings,
        trace=trace,
        memory=memory(
            trace,
            target.device,
            allocator=settings.allocator,
            gpus=gpus,
            cudnn_benchmark=settings.cudnn_benchmark,
        ),
        time=update_seconds(trace, target.device, microbatches),
    )


def _attempts(wanted: Settings, effective_batch: int) -> Iterator[Settings]:
    """At one precision, from the fastest to what takes least."""
    for checkpointing in (wanted.checkpointing,) if wanted.checkpointing else ("no", "full"):
        for micro_batch in _micro_batches(effective_batch, wanted.micro_batch):
            yield wanted.replace(checkpointing=checkpointing, micro_batch=micro_batch)


def _micro_batches(effective_batch: int, wanted: int | None) -> Iterator[int]:
    size = min(wanted or effective_batch, effective_batch)
    yield size
    while wanted is None and size > 1:
        size = -(-size // 2)
        yield size
