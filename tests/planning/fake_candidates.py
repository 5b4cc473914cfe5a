"""Candidates with given costs, so that a search over them needs no traces."""

from dataclasses import replace
from types import SimpleNamespace

from shoestring.base.errors import TraceError
from shoestring.hardware import targets
from shoestring.planning.candidates import Candidate, Candidates
from shoestring.recipe.adaptation import Adaptation
from shoestring.recipe.parts import Parts
from tests.planning.estimate.example_traces import op, update

T4 = targets.find("t4")
GIB = 2**30


class FakeCandidates(Candidates):
    """Candidates whose bytes and seconds are functions of their settings; `evaluated` has those that were evaluated."""

    part = "activations"
    """The part of the memory that all bytes are of."""
    convolutions = 0.0
    """The share of convolutions in the FLOPs of a forward pass."""

    def __init__(
        self,
        *,
        bytes_of,
        seconds=None,
        effective_batch=64,
        target=T4,
        blocks=0,
        weights=0,
        batch_norm=False,
        fused_optimizer=False,
    ):
        self.bytes_of, self.seconds, self.target = bytes_of, seconds or default_seconds, target
        self.loaded = SimpleNamespace(effective_batch=effective_batch, parts=Parts(), adaptation=Adaptation())
        facts = SimpleNamespace(
            blocks=blocks, weight_bytes=weights, batch_norm=batch_norm, fused_optimizer=fused_optimizer
        )
        self.tracer = SimpleNamespace(facts=facts)
        self.evaluated = {}

    def evaluate(self, settings):
        if settings not in self.evaluated:
            try:
                high = self.bytes_of(settings)
            except TraceError:
                self.refused += (settings.micro_batch,)
                raise
            size = settings.micro_batch
            flops = round(10**9 * size * self.convolutions)
            trace = update(
                forward=op(flops=10**9 * size - flops),
                backward=op(flops=2 * 10**9 * size),
                optimizer=op(size=1000, flops=flops, name="aten::convolution"),
            )
            seconds = self.seconds(settings)
            self.evaluated[settings] = Candidate(
                settings=settings,
                trace=replace(trace, micro_batch=size, precision=settings.precision),
                memory=SimpleNamespace(
                    fits=high <= self.target.device.memory_bytes,
                    peak_bytes=high,
                    high_bytes=high,
                    parts=(SimpleNamespace(name=self.part, bytes=high),),
                ),
                time=None if seconds is None else SimpleNamespace(value=seconds, parts={"optimizer": 0.0}),
            )
        return self.evaluated[settings]

    def prefetch(self, *_): ...

    def seconds_of(self, trace, settings, micro_batch=None):
        return 0.0 if trace.precision == "fp16" else 0.1

    def seconds_at(self, candidate, micro_batch, **changes):
        return default_seconds(candidate.settings.replace(micro_batch=micro_batch))


def default_seconds(settings):
    """Arithmetic in proportion, twice as fast in 16 bits, a third more for all of 8 blocks, and a launch each."""
    recomputed = int({"no": 0, "full": 8}.get(settings.checkpointing, settings.checkpointing))
    return (1.0 if settings.precision == "fp32" else 0.5) * (1 + recomputed / 24) + 0.01 * -(
        -64 // settings.micro_batch
    )


def bytes_per_sample(gib, *, blocks=8, floor=0.0):
    def bytes_of(settings):
        recomputed = {"no": 0, "full": blocks}.get(settings.checkpointing, settings.checkpointing)
        saved = 1 - 0.9 * int(recomputed) / blocks
        return round((floor + gib * settings.micro_batch * saved * (1.5 if settings.precision == "fp32" else 1)) * GIB)

    return bytes_of
