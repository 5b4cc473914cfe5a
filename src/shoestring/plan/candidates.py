"""Settings that leave nothing open, with what they cost. Each is followed once, as that takes seconds."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from shoestring.errors import UsageError
from shoestring.estimate.calibration import Calibration
from shoestring.estimate.memory import Breakdown, memory
from shoestring.estimate.time import Seconds, update_seconds
from shoestring.hardware.catalog import Device, Target
from shoestring.plan.projection import scaled
from shoestring.recipe.options import LoadedRecipe
from shoestring.settings import Settings
from shoestring.trace import Tracer
from shoestring.trace.record import Trace


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Settings that leave nothing open, with what they cost."""

    settings: Settings
    trace: Trace
    memory: Breakdown
    time: Seconds | None
    """None on a device whose rates nobody knows."""

    @property
    def fits(self) -> bool:
        return self.memory.fits

    @property
    def seconds(self) -> float:
        """Predicted seconds of an update; 0 where no rate is known, so that all are equal."""
        return self.time.value if self.time else 0.0


class Candidates:
    """Follows the candidates of one recipe on one target. A question that was asked is not asked again.

    What was asked before changes how long an answer takes, never what it is.
    """

    def __init__(
        self, tracer: Tracer, loaded: LoadedRecipe, target: Target, calibration: Calibration | None = None
    ) -> None:
        """`calibration` is what a run on the same device measured."""
        self.tracer, self.loaded, self.target = tracer, loaded, target
        self.calibration = calibration
        self._answers: dict[Settings, Candidate] = {}
        self._begun: dict[Settings, Future[Candidate]] = {}
        self._beside: Tracer | None = None

    def follow(self, settings: Settings) -> Candidate:
        """These settings on one GPU, followed. Raises what `Tracer.trace` raises."""
        if settings not in self._answers:
            begun = self._begun.pop(settings, None)
            self._answers[settings] = (
                begun.result()
                if begun
                else candidate(self.tracer, self.loaded, self.target, settings, calibration=self.calibration)
            )
        return self._answers[settings]

    def possible(self, settings: Settings) -> Candidate | None:
        """These settings, followed, or None where the recipe's model or optimizer cannot have them."""
        try:
            return self.follow(settings)
        except UsageError:
            return None

    def prefetch(self, settings: Settings) -> None:
        """Begin to follow settings that are likely to be asked for later, in a child process of their own.

        Errors show when the settings are asked for. A recipe that is a live object waits for its turn: it goes to a
        child by `fork`, which is not for a process with threads at work.
        """
        if not self.loaded.reference or settings in self._answers or settings in self._begun:
            return
        if self._beside is None:
            self._beside = Tracer(self.loaded)
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="tracing")
        self._begun[settings] = self._thread.submit(
            candidate, self._beside, self.loaded, self.target, settings, calibration=self.calibration
        )

    def __enter__(self) -> "Candidates":
        return self

    def __exit__(self, *_: object) -> None:
        if self._beside:
            self._beside.close()
            self._thread.shutdown(cancel_futures=True)

    def seconds_of(self, trace: Trace, settings: Settings) -> float:
        """Of an update of the effective batch, were its microbatches like the trace; 0 where no rate is known."""
        seconds = seconds_of(
            trace,
            self.target.device,
            self.loaded.effective_batch,
            calibration=self.calibration,
            cuda_graphs=settings.cuda_graphs,
        )
        return seconds.value if seconds else 0.0

    def seconds_at(self, followed: Candidate, micro_batch: int) -> float:
        """Of an update of the effective batch, were the candidate's microbatch another and its work in proportion."""
        if followed.trace.micro_batch == micro_batch:
            return followed.seconds
        return self.seconds_of(scaled(followed.trace, micro_batch), followed.settings)

    def changed(self, changes: Mapping[str, Any], settings: Settings, *, gpus: int = 1) -> Candidate:
        """The settings with other options of the recipe, or on several GPUs, followed; not remembered.

        Raises UsageError where the recipe or the settings cannot be so, TraceError as `Tracer.trace`.
        """
        loaded = self.loaded.replace(**changes) if changes else self.loaded
        return candidate(
            self.tracer, loaded, self.target, settings, gpus=gpus, options=changes, calibration=self.calibration
        )


def candidate(
    tracer: Tracer,
    loaded: LoadedRecipe,
    target: Target,
    settings: Settings,
    *,
    gpus: int = 1,
    options: Mapping[str, Any] | None = None,
    calibration: Calibration | None = None,
) -> Candidate:
    """The cost of settings that leave neither microbatch nor precision open, on each of `gpus` GPUs of the target.

    The GPUs divide the effective batch. `options` are those in which
    `loaded` differs from the tracer's recipe.
    """
    assert settings.micro_batch is not None and settings.precision is not None
    share = -(-loaded.effective_batch // gpus)
    microbatches = -(-share // settings.micro_batch)
    # Microbatches are as equal as possible, so the largest may be smaller than the setting allows.
    traced = settings.replace(micro_batch=-(-share // microbatches))
    trace = tracer.trace(traced, accumulate=microbatches, device=target.device, gpus=gpus, options=options)
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
        time=seconds_of(
            trace, target.device, share, gpus=gpus, calibration=calibration, cuda_graphs=settings.cuda_graphs
        ),
    )


def seconds_of(
    trace: Trace,
    device: Device,
    samples: int,
    *,
    gpus: int = 1,
    calibration: Calibration | None = None,
    cuda_graphs: bool = False,
) -> Seconds | None:
    """An update of so many samples on each of `gpus`: as many microbatches of the traced size as make just these.

    All but the last of 9 samples by 5 would be 10, so the microbatches that follow the first count as 4 / 5.
    """
    first = update_seconds(trace, device, 1, gpus=gpus, calibration=calibration, cuda_graphs=cuda_graphs)
    more = samples / trace.micro_batch - 1
    if first is None or more <= 0:
        return first
    both = update_seconds(trace, device, 2, gpus=gpus, calibration=calibration, cuda_graphs=cuda_graphs)
    assert both is not None
    return replace(
        first,
        parts={name: value + more * (both.parts[name] - value) for name, value in first.parts.items()},
        low=first.low + more * (both.low - first.low),
        high=first.high + more * (both.high - first.high),
    )
