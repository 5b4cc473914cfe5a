"""The choice of the memory format: channels_last if it is predicted to be faster, at the cost of one more trace."""

from collections.abc import Iterator, Sequence

from shoestring.base.errors import TraceError, UsageError
from shoestring.base.settings import Settings
from shoestring.planning.candidates import Candidate, Candidates
from shoestring.planning.micro_batch import MIN_SPEEDUP
from shoestring.planning.trace.convolution import ConvolutionShape
from shoestring.planning.trace.record import Op, Trace
from shoestring.techniques.trainable import channels_last_problems

_TENSOR_CORES = (7, 0)
"""The compute capability that introduced tensor cores, which compute 16-bit convolutions of channels_last images."""


def may_gain(candidates: Candidates, requested: Settings) -> bool:
    """Return whether the format is open, and channels_last can be trained with and makes convolutions faster."""
    loaded, capability = candidates.loaded, candidates.target.device.compute_capability
    return (
        requested.memory_format is None
        and capability is not None
        and capability >= _TENSOR_CORES
        and loaded.parts.learning.trainer is None
        and not channels_last_problems(requested.replace(memory_format="channels_last"), loaded.adaptation)
    )


def candidates_with_channels_last(candidates: Candidates, contiguous: Candidate) -> list[Candidate]:
    """Trace 16-bit settings with channels_last, and return their candidate if it is faster.

    A recipe that cannot be traced with it, such as one that calls `view` on an image, keeps contiguous tensors, and
    `candidates.channels_last_error` says why.
    """
    if contiguous.time is None or not _may_be_faster(contiguous.trace):
        return []
    try:
        candidate = candidates.evaluate(contiguous.settings.replace(memory_format="channels_last"))
    except (TraceError, UsageError) as error:
        candidates.channels_last_error = error.message
        return []
    return [candidate] if candidate.comparable_seconds * MIN_SPEEDUP < contiguous.comparable_seconds else []


def _may_be_faster(trace: Trace) -> bool:
    """Return whether convolutions of contiguous images have so large a share of the arithmetic that their time matters.

    The patches of a vision transformer are a convolution with one hundredth of it. A recipe may convert images itself.
    """
    operators = [event for event in trace.events if isinstance(event, Op)]
    contiguous = sum(
        operator.flops
        for operator in operators
        if "convolution" in operator.name and not _is_channels_last(operator.shape)
    )
    return contiguous * MIN_SPEEDUP > (MIN_SPEEDUP - 1) * sum(operator.flops for operator in operators)


def _is_channels_last(shape: Sequence[int]) -> bool:
    return len(shape) == len(ConvolutionShape._fields) and bool(ConvolutionShape(*shape).channels_last)


def memory_format_reasons(ranked: Sequence[Candidate], requested: Settings, error: str) -> Iterator[str]:
    """Yield why the first candidate has its memory format, if the plan has compared both; `error` is that of a trace
    with channels_last."""
    chosen = ranked[0]
    if requested.memory_format is not None:
        return
    if error:
        yield f"memory_format contiguous: the recipe does not support channels_last: {error}"
    if chosen.settings.memory_format != "channels_last":
        return
    same = chosen.settings.replace(memory_format="contiguous", optimizer_kernel=None)
    rivals = [candidate for candidate in ranked if candidate.settings.replace(optimizer_kernel=None) == same]
    speedup = f"{min(rival.seconds for rival in rivals) / chosen.seconds - 1:.0%} faster" if rivals else "faster"
    yield (
        f"memory_format channels_last: {speedup}, because tensor cores compute with it, and cuDNN transposes "
        "contiguous images before and after each convolution"
    )
