"""The reasons for the number of GPUs of a plan and for what they share, as sentences for the user."""

from collections.abc import Iterator, Sequence

from shoestring.base.settings import Settings
from shoestring.base.units import bytes_text, seconds_text
from shoestring.hardware.catalog import Target
from shoestring.planning.candidates import Candidate, memory_of_parts
from shoestring.planning.search import TIE_RATIO
from shoestring.recipe.options import LoadedRecipe

_DIVIDED = {
    "zero1": "optimizer states",
    "zero2": "optimizer states and gradients",
    "zero3": "optimizer states, gradients and weights",
}
_BYTES_PER_GRADIENT = 4


def gpu_reasons(
    candidates: Sequence[Candidate], loaded: LoadedRecipe, target: Target, requested: Settings
) -> Iterator[str]:
    """Yield why the first candidate uses so many GPUs, and why they share what they share."""
    chosen = candidates[0]
    gpus = chosen.settings.processes
    if target.device.kind == "cpu":
        if gpus > 1:
            yield (
                f"gpus {gpus}: {gpus} processes share the CPU and its memory; the time is predicted as that of one "
                "process"
            )
        return
    if chosen.settings.is_pipeline:
        yield _pipeline_reason(chosen, loaded, target, requested)
    elif target.gpus > 1:
        yield (
            _several_gpus(candidates, target, requested)
            if gpus > 1
            else _single_gpu(candidates, loaded, target, requested)
        )
    if gpus > 1 and requested.sharding is None and chosen.settings.sharding in _DIVIDED:
        yield _sharding_reason(candidates)
    is_open = target.gpus > 1 and requested.sharding is None
    if is_open and loaded.parts.learning.after_update is not None and (gpus > 1 or not chosen.fits):
        yield (
            "sharding zero2 and zero3 were not tried: after_update(model) needs whole weights, and a GPU would have a "
            "part of them"
        )


def _pipeline_reason(chosen: Candidate, loaded: LoadedRecipe, target: Target, requested: Settings) -> str:
    cause = "was requested" if requested.is_pipeline else "streams fewer blocks than whole models would"
    if chosen.trace.second is None:
        return f"sharding pipeline {cause}: the blocks are divided between two GPUs"
    first, second = (
        bytes_text(part.peak_bytes) for part in memory_of_parts(chosen.trace, loaded, target, chosen.settings)
    )
    return (
        f"sharding pipeline {cause}: the first blocks are on one GPU, which needs {first}, and the others on a "
        f"second one, which needs {second}; they compute different microbatches at the same time"
    )


def _several_gpus(candidates: Sequence[Candidate], target: Target, requested: Settings) -> str:
    chosen = candidates[0]
    name = _name(chosen, target)
    if requested.gpus:
        return f"{name}: gpus={requested.gpus} was requested{_exchange(chosen, ', and ')}"
    rival = _best_on(candidates, several=False)
    if rival is None or not rival.fits:
        return f"{name}: no settings that were tried fit on one{_exchange(chosen, '; ')}"
    if chosen.time is None:
        return f"{name}: the time is not predicted, and each computes only a part of an update"
    return (
        f"{name}: an update takes {seconds_text(chosen.seconds)} instead of {seconds_text(rival.seconds)} on one"
        f"{_exchange(chosen, ', ')}"
    )


def _single_gpu(candidates: Sequence[Candidate], loaded: LoadedRecipe, target: Target, requested: Settings) -> str:
    prefix = f"only one of the {target.gpus} GPUs is used"
    if loaded.parts.learning.whole_batch:
        return f"{prefix}, because whole_batch = True in the recipe: its loss compares all samples of an update"
    if requested.gpus == 1 or requested.logical_shards == 1:
        return f"{prefix}, because {'gpus' if requested.gpus else 'logical_shards'}=1 was requested"
    if loaded.effective_batch == 1:
        return f"{prefix}, because an update has only one sample"
    chosen, rival = candidates[0], _best_on(candidates, several=True)
    if rival is None:
        return f"{prefix}, because the model does not support several"
    name = _name(rival, target)
    if not rival.fits:
        return f"{prefix}: on {name} an update needs up to {bytes_text(rival.memory.high_bytes)} on each"
    size = bytes_text(chosen.trace.facts.parameters_trainable * _BYTES_PER_GRADIENT)
    exchange = rival.time.parts.get("exchange", 0.0) if rival.time else 0.0
    comparison = f"an update would take {seconds_text(rival.seconds)} on {name}, {seconds_text(exchange)} of it"
    if rival.seconds < chosen.seconds < rival.seconds * TIE_RATIO:
        return (
            f"{prefix}: {comparison} to exchange {size} of gradients, which is less than the error of the prediction "
            f"below the {seconds_text(chosen.seconds)} on one"
        )
    return f"{prefix}: {comparison} to exchange {size} of gradients, instead of {seconds_text(chosen.seconds)} on one"


def _sharding_reason(candidates: Sequence[Candidate]) -> str:
    chosen = candidates[0]
    sharding = chosen.settings.sharding or ""
    replicas = [
        candidate
        for candidate in candidates
        if candidate.settings.sharding == "ddp" and candidate.settings.processes == chosen.settings.processes
    ]
    best = replicas[0] if replicas else None
    prefix = f"sharding {sharding}: each GPU has a share of the {_DIVIDED[sharding]}"
    gpus = chosen.settings.processes
    limit = "" if sharding == "zero1" else f". The run continues bit for bit on {gpus} GPUs only"
    if best is None or not best.fits:
        return f"{prefix}, because those of a whole model do not fit{limit}"
    cause = "which leaves memory for faster settings"
    if sharding != "zero1" and best.settings.replace(sharding=sharding) == chosen.settings:
        cause = "and they are exchanged during the whole computation instead of from the last backward on"
    return (
        f"{prefix}, {cause}: {seconds_text(chosen.seconds)} instead of {seconds_text(best.seconds)} for an update with "
        f"sharding=ddp{limit}"
    )


def _best_on(candidates: Sequence[Candidate], *, several: bool) -> Candidate | None:
    return next((candidate for candidate in candidates if (candidate.settings.processes > 1) is several), None)


def _name(candidate: Candidate, target: Target) -> str:
    gpus = candidate.settings.processes
    if gpus < target.gpus:
        return f"{gpus} of the {target.gpus} GPUs"
    return "both GPUs" if gpus == 2 else f"all {gpus} GPUs"


def _exchange(candidate: Candidate, conjunction: str) -> str:
    seconds = candidate.time.parts.get("exchange") if candidate.time else None
    return "" if seconds is None else f"{conjunction}{seconds_text(seconds)} of it to exchange gradients"
