"""Candidates: complete settings with their predicted cost. Each is traced once, because tracing takes seconds."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

from shoestring.base.errors import TraceError, UsageError
from shoestring.base.settings import Settings
from shoestring.hardware.catalog import Device, Target
from shoestring.hardware.cpu_rates import NOMINAL
from shoestring.planning.estimate.block_order import group_sizes, in_block_order, lengths_of_groups
from shoestring.planning.estimate.calibration import Calibration
from shoestring.planning.estimate.exchange import GATHERS
from shoestring.planning.estimate.lengths import VaryingLengths
from shoestring.planning.estimate.memory import Breakdown, memory
from shoestring.planning.estimate.pipeline import pipeline_seconds
from shoestring.planning.estimate.time import Seconds, update_seconds
from shoestring.planning.length_work import PROPORTIONAL, LengthWork, find_length_work
from shoestring.planning.load import load_of_shard, rows_per_shard
from shoestring.planning.projection import on_one_gpu
from shoestring.planning.shares import samples_per_gpu, shards_per_gpu
from shoestring.planning.trace import Tracer
from shoestring.planning.trace.record import Trace
from shoestring.recipe.options import LoadedRecipe
from shoestring.techniques.autotuning import uses_cudnn_benchmark
from shoestring.techniques.streaming.schedule import streamed_positions

UNTRACED = {
    name: getattr(Settings(), name)
    for name in (
        *(
            "allocator",
            "cudnn_benchmark",
            "tf32",
            "stream_from",
            "stream_order",
            "stream_group",
            "workers",
            "stage",
            "save",
            "save_every_updates",
            "save_every_seconds",
        ),
        *("save_epochs", "keep_checkpoints", "keep_light", "light_weights"),
    )
}
"""The settings that a trace does not depend on, with their defaults: candidates that differ only in them share one."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Complete settings with their predicted cost."""

    settings: Settings
    trace: Trace
    memory: Breakdown
    time: Seconds | None
    """None on a device without known rates."""
    nominal_time: Seconds | None = None
    """The time at nominal rates, by which candidates are compared; None where `time` itself never varies."""

    @property
    def fits(self) -> bool:
        return self.memory.fits

    @property
    def seconds(self) -> float:
        """The predicted seconds of an update, as a plan shows them; 0 if no rates are known."""
        return self.time.value if self.time else 0.0

    @property
    def comparable_seconds(self) -> float:
        """The seconds of an update by which settings are chosen: the same in each plan of the same command.

        They are 0 if no rates are known, so that all candidates are equal.
        """
        return self.nominal_time.value if self.nominal_time else self.seconds


_Key: TypeAlias = tuple[tuple[tuple[str, Any], ...], Settings]
"""Changed options of the recipe, and settings."""


class Candidates:
    """Traces the candidates of one recipe on one target, with a cache.

    The state of the cache changes how long a call takes, never its result.
    """

    length_work = PROPORTIONAL
    """How the work of samples depends on their length."""
    channels_last_error = ""
    """Why the recipe cannot be traced with `memory_format=channels_last`; empty if it can, or was not tried."""
    divisor = 1
    """What the samples of every microbatch are a multiple of."""
    divisor_reason = ""
    """The error of a trace because of which the divisor is larger than 1."""
    refused: tuple[int, ...] = ()
    """The microbatches whose trace failed."""

    def __init__(
        self, tracer: Tracer, loaded: LoadedRecipe, target: Target, calibration: Calibration | None = None
    ) -> None:
        """Trace `loaded` with `tracer`; `calibration` is the measurement of a run on the same device."""
        self.tracer, self.loaded, self.target = tracer, loaded, target
        self.calibration = calibration
        self._cache: dict[_Key, Candidate] = {}
        self._pending: dict[_Key, Future[Candidate]] = {}
        self._background_tracer: Tracer | None = None

    def evaluate(self, settings: Settings) -> Candidate:
        """Trace the settings on one of their GPUs and return their candidate. Raises what `Tracer.trace` raises."""
        return self.evaluate_with_options({}, settings)

    def evaluate_if_possible(self, settings: Settings) -> Candidate | None:
        """Trace the settings; return None if the recipe's model or optimizer does not support them."""
        try:
            return self.evaluate(settings)
        except UsageError:
            return None

    def evaluate_with_options(self, changes: Mapping[str, Any], settings: Settings) -> Candidate:
        """Trace the settings with changed options of the recipe, as `evaluate` does.

        Raises UsageError if the recipe does not support the options or settings, TraceError as `Tracer.trace` does.
        """
        key = _key(changes, settings)
        if key not in self._cache:
            self._cache[key] = self._pending_result(key) or self._candidate(self.tracer, changes, settings)
        return self._cache[key]

    def prefetch(self, settings: Settings, changes: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Start tracing settings that are likely to be needed later, in another child process.

        Errors are raised when the settings are evaluated. Nothing is traced in advance outside of the context of the
        candidates, or if their tracer has no copy.
        """
        key = _key(changes, settings)
        if self._background_tracer and key not in self._cache and key not in self._pending:
            self._pending[key] = self._thread.submit(self._candidate, self._background_tracer, changes, settings)

    def _pending_result(self, key: _Key) -> Candidate | None:
        """Return the candidate that was prefetched; None if there is none.

        After a TraceError there is none: the error of the tracer itself names its cause.
        """
        pending = self._pending.pop(key, None)
        try:
            return pending.result() if pending else None
        except TraceError:
            return None

    def __enter__(self) -> "Candidates":
        self._background_tracer = self.tracer.copy()
        self.length_work = find_length_work(self.tracer, self.loaded, with_nominal_rates(self.target.device))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tracing")
        return self

    def __exit__(self, *_: object) -> None:
        # A trace that nobody needs any more ends with its process; the next plan of this tracer needs the process.
        self._thread.shutdown(wait=False, cancel_futures=True)

    def seconds_of(self, trace: Trace, settings: Settings, micro_batch: int | None = None) -> float:
        """Return the comparable seconds of an update of the effective batch whose microbatches are like the trace.

        With `micro_batch` they have so many samples and proportional work. The result is 0 if no rates are known.
        """
        device = with_nominal_rates(self.target.device)
        seconds = seconds_of(
            trace,
            device,
            self.loaded,
            settings,
            micro_batch=micro_batch,
            calibration=self.calibration,
            length_work=self.length_work,
        )
        return seconds.value if seconds else 0.0

    def seconds_at(self, candidate: Candidate, micro_batch: int, **changes: Any) -> float:
        """Return the comparable seconds of an update of the effective batch with another microbatch and proportional
        work.

        `changes` are settings with which the candidate would have the same trace otherwise.
        """
        if candidate.trace.micro_batch == micro_batch and not changes:
            return candidate.comparable_seconds
        return self.seconds_of(candidate.trace, candidate.settings.replace(**changes), micro_batch)

    def memory_in_block_order(self, candidate: Candidate, group: int | None) -> Breakdown:
        """Return the memory of a candidate in the usual order if a `group` of microbatches, or all of an update, ran
        each block before the next one, as with `stream_order=block`.
        """
        settings = candidate.settings.replace(
            streamed_blocks=len(candidate.trace.block_bytes),
            stream_order="block",
            stream_group=group,
            micro_batch=candidate.trace.micro_batch,
        )
        return memory_of(candidate.trace, self.loaded, self.target, settings)

    def without_exchange(self, candidate: Candidate) -> Candidate:
        """Return the candidate of one GPU with the same microbatch, without tracing it; it has at least two of them."""
        settings = candidate.settings.replace(gpus=1, logical_shards=1)
        trace = on_one_gpu(candidate.trace)
        return priced(
            trace, self.loaded, self.target, settings, calibration=self.calibration, length_work=self.length_work
        )

    def _candidate(self, tracer: Tracer, changes: Mapping[str, Any], settings: Settings) -> Candidate:
        loaded = self.loaded.replace(**changes) if changes else self.loaded
        try:
            return candidate(
                tracer,
                loaded,
                self.target,
                settings,
                options=changes,
                calibration=self.calibration,
                length_work=self.length_work,
            )
        except TraceError:
            self.refused += (settings.micro_batch or 0,)
            raise


def _key(changes: Mapping[str, Any], settings: Settings) -> _Key:
    return tuple(sorted(changes.items())), settings


def candidate(
    tracer: Tracer,
    loaded: LoadedRecipe,
    target: Target,
    settings: Settings,
    *,
    options: Mapping[str, Any] | None = None,
    calibration: Calibration | None = None,
    length_work: LengthWork = PROPORTIONAL,
) -> Candidate:
    """Trace settings that have a microbatch and a precision, on one of their GPUs.

    The GPUs divide the effective batch. `options` are the options in which `loaded` differs from the tracer's recipe.
    """
    trace = trace_settings(tracer, loaded, target, settings, options)
    return priced(trace, loaded, target, settings, calibration=calibration, length_work=length_work)


def trace_settings(
    tracer: Tracer,
    loaded: LoadedRecipe,
    target: Target,
    settings: Settings,
    options: Mapping[str, Any] | None = None,
) -> Trace:
    """Return the trace of settings as `candidate` does."""
    assert settings.micro_batch is not None and settings.precision is not None
    share = rows_per_shard(loaded, tracer.facts, settings)
    microbatches = -(-share // settings.micro_batch)
    # Microbatches are as equal as possible, so the largest may be smaller than the setting allows.
    traced = settings.replace(micro_batch=-(-share // microbatches), **UNTRACED)
    if settings.sharding in GATHERS:  # FSDP2 adds the gradients of all shards to the same ones
        microbatches *= shards_per_gpu(settings)
    is_quantized_elsewhere = loaded.parts.learning.other_loop and loaded.adaptation.quantization != "none"
    return tracer.trace(
        traced,
        accumulate=microbatches,
        device=target.device,
        gpus=settings.processes,
        torch_ddp=uses_torch_ddp(loaded, settings),
        loading="transformers" if is_quantized_elsewhere else "engine",
        options=options,
    )


def uses_torch_ddp(loaded: LoadedRecipe, settings: Settings) -> bool:
    """Return whether torch's DistributedDataParallel exchanges gradients, as in a loop other than the engine's."""
    return loaded.parts.learning.other_loop and settings.processes > 1 and settings.sharding not in GATHERS


def priced(
    trace: Trace,
    loaded: LoadedRecipe,
    target: Target,
    settings: Settings,
    *,
    calibration: Calibration | None = None,
    length_work: LengthWork = PROPORTIONAL,
) -> Candidate:
    """Return the candidate of settings that have this trace."""
    nominal_device = with_nominal_rates(target.device)
    return Candidate(
        settings=settings,
        trace=trace,
        memory=memory_of(trace, loaded, target, settings),
        time=seconds_of(trace, target.device, loaded, settings, calibration=calibration, length_work=length_work),
        nominal_time=seconds_of(
            trace, nominal_device, loaded, settings, calibration=calibration, length_work=length_work
        )
        if nominal_device is not target.device
        else None,
    )


def memory_of(
    trace: Trace, loaded: LoadedRecipe, target: Target, settings: Settings, varying: VaryingLengths | None = None
) -> Breakdown:
    """Estimate the memory of settings that have this trace, for microbatches of `varying` lengths or of one: that of
    the GPU with more of it, if the model is divided between two.
    """
    if trace.second:
        return max(memory_of_parts(trace, loaded, target, settings), key=lambda part: part.high_bytes)
    if settings.stream_order == "block":
        groups = _groups(trace, loaded, settings, trace.micro_batch)
        trace = in_block_order(trace, groups)
        if varying:
            varying = replace(
                varying,
                shorter=in_block_order(varying.shorter, groups),
                likely=lengths_of_groups(varying.likely, groups[0]),
                worst=lengths_of_groups(varying.worst, groups[0]),
            )
    return memory(
        trace,
        target.device,
        allocator=settings.allocator or "segments",
        gpus=settings.processes,
        cudnn_benchmark=uses_cudnn_benchmark(settings, loaded.parts),
        deterministic=not loaded.parts.learning.other_loop,
        varying=varying,
    )


def _groups(trace: Trace, loaded: LoadedRecipe, settings: Settings, micro_batch: int) -> list[int]:
    """Return how many microbatches each group of an update has with `stream_order=block`."""
    return group_sizes(-(-rows_per_shard(loaded, trace.facts, settings) // micro_batch), settings.stream_group)


def memory_of_parts(
    trace: Trace, loaded: LoadedRecipe, target: Target, settings: Settings
) -> tuple[Breakdown, Breakdown]:
    """Estimate the memory of both GPUs between which a model is divided, if all microbatches have the traced length."""
    assert trace.second
    first, second = (memory_of(part, loaded, target, settings) for part in (replace(trace, second=None), trace.second))
    return first, second


def with_nominal_rates(device: Device) -> Device:
    """Return a CPU with nominal rates; a GPU, or a device with rates that the user gave, as it is.

    The rates of this machine's CPU are measured, and a measurement differs from the one before. So the settings are
    chosen by fixed rates, and the measured ones give the times that are shown. Where the order of settings depends on
    the rates, as for short rows that are packed or not, the difference in time is small.
    """
    if device.kind != "cpu" or device.measured:
        return device
    return replace(device, fp32_flops=NOMINAL.fp32_flops, bandwidth=NOMINAL.bandwidth)


def seconds_of(
    trace: Trace,
    device: Device,
    loaded: LoadedRecipe,
    settings: Settings,
    *,
    micro_batch: int | None = None,
    samples: int | None = None,
    calibration: Calibration | None = None,
    length_work: LengthWork = PROPORTIONAL,
) -> Seconds | None:
    """Predict the seconds of an update with the GPUs of `settings`.

    `micro_batch` is by default that of the trace; the work of another one is in proportion to it. `samples` are those
    of one GPU, by default its share of the effective batch. Microbatches after the first count in proportion to their
    samples: for 9 samples in microbatches of 5, as 4 / 5; shorter samples have the work of their padded length.
    Processes on a CPU share its cores, so they are predicted to take as long as one.
    """
    gpus = settings.processes
    samples = samples or samples_per_gpu(loaded.effective_batch, settings)
    if device.kind == "cpu":
        gpus, samples = 1, samples * gpus
    size = micro_batch or trace.micro_batch
    microbatches, work = samples / size, size / trace.micro_batch
    if load := load_of_shard(loaded, trace.facts, settings, size, length_work):
        # Short samples have less work, but as many kernels.
        microbatches = load.microbatches * samples / load.samples
        work = load.work / load.microbatches / trace.micro_batch
    estimate = partial(
        update_seconds,
        device=device,
        microbatches=max(1.0, microbatches),
        work=work,
        gpus=gpus,
        sharding=settings.sharding,
        calibration=calibration,
        cuda_graphs=settings.cuda_graphs,
        cudnn_benchmark=uses_cudnn_benchmark(settings, loaded.parts),
        tf32=settings.tf32,
        compiled=settings.compile == "yes",
        torch_ddp=uses_torch_ddp(loaded, settings),
        by_library=loaded.parts.learning.trainer is not None or loaded.parts.learning.other_loop,
        stream_from=settings.stream_from or "host",
        passes=len(_groups(trace, loaded, settings, size)) if settings.stream_order == "block" else None,
    )
    if trace.second is None:
        return estimate(trace, streamed_blocks=settings.streamed_blocks)
    counts = _streamed_in_parts(trace, settings.streamed_blocks or 0)
    first, second = (
        estimate(part, streamed_blocks=count)
        for part, count in zip((replace(trace, second=None), trace.second), counts, strict=True)
    )
    if first is None or second is None:
        return None
    return pipeline_seconds(trace, first, second, device, max(1.0, microbatches))


def _streamed_in_parts(trace: Trace, count: int) -> tuple[int, int]:
    """Return how many of `count` streamed blocks are on the first and on the second of two GPUs."""
    assert trace.second
    on_first = len(trace.block_bytes)
    total = len(trace.bytes_of_all_blocks)
    positions = streamed_positions(total, count) if total else []
    own = sum(position < on_first for position in positions)
    return own, len(positions) - own
