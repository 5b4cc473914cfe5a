"""The reasons for a plan's choices, as sentences for the user."""

from collections.abc import Iterator, Sequence

from shoestring.base.settings import Settings
from shoestring.base.units import bytes_text
from shoestring.hardware.catalog import Target, smallest_gpu
from shoestring.planning.candidates import Candidate
from shoestring.planning.estimate.calibration import Calibration
from shoestring.planning.gpu_reasons import gpu_reasons
from shoestring.planning.limits import Limit
from shoestring.planning.load import Load, load_of_shard
from shoestring.planning.proposals.proposal import Proposal, smallest_change
from shoestring.planning.search import TIE_RATIO
from shoestring.planning.shares import samples_per_gpu, samples_per_shard
from shoestring.planning.trace.record import Facts
from shoestring.recipe.options import LoadedRecipe


def reasons(
    candidates: Sequence[Candidate],
    loaded: LoadedRecipe,
    target: Target,
    requested: Settings,
    facts: Facts,
    bounds: Sequence[Limit],
) -> list[str]:
    """Return the reasons for choosing the first candidate, and the caveats that the user should know."""
    chosen = candidates[0]
    settings = chosen.settings
    sentences = [_memory_reason(chosen), _micro_batch_reason(candidates, loaded, requested)]
    sentences.append(_precision_reason(candidates, target, requested))
    if settings.checkpointing not in ("no", None) and requested.checkpointing is None:
        sentences.append(_checkpointing_reason(chosen, facts))
    if settings.optimizer_kernel and not requested.optimizer_kernel:
        sentences.append(
            f"optimizer_kernel {settings.optimizer_kernel}: a single kernel launch updates all weights, without "
            "temporary copies of them"
        )
    if load := load_of_shard(loaded, facts, settings, settings.micro_batch or 1):
        sentences.append(_packing_reason(load, chosen, loaded))
    if settings.compile == "yes":
        sentences.append(
            "compile yes: memory and time are predicted without compilation, because compiled blocks are not "
            "estimated; only the low end of the time is that of updates that torch.compile makes 1.51 times as fast "
            "(1.21 in fp32), as its authors report for an A100"
        )
    if settings.tf32 and target.device.tf32_flops is None:
        sentences.append(f"tf32: {target.device.title} has no TF32, so matrix products of fp32 data stay in fp32")
    if settings.cuda_graphs:
        sentences.append(
            "compile graphs: the time is predicted without kernel launches for microbatches, the memory as without "
            "CUDA graphs"
        )
    if facts.batch_norm and settings.micro_batch != loaded.effective_batch:
        sentences.append(
            f"BatchNorm computes its statistics from each microbatch of {settings.micro_batch}, so a different "
            "microbatch changes the training result slightly"
        )
    if chosen.time is None:
        sentences.append(
            f"no time is predicted, because no rates are known for {target.device.title}; the first updates of a run "
            "will measure it"
        )
    if facts.samples is None:
        sentences.append("epochs, sessions and total time are unknown, because the recipe has no data()")
    sentences += [
        f"{limit.name}: the run needs {limit.text(limit.needs)}, but only {limit.text(limit.has)} are available"
        for limit in bounds[1:]
        if not limit.holds
    ]
    sentences += gpu_reasons(candidates, loaded, target, requested)
    return sentences


def calibration_reason(calibration: Calibration | None, target: Target) -> Iterator[str]:
    """Yield the effect of a measurement on the prediction, or the reason that it has none."""
    measured = target.device.measured or (calibration.rates if calibration else None)
    if measured and measured.device.title == target.device.title:
        yield f"time: predicted from {measured.source}; no update was compared with these rates"
        yield from (f"time: {warning}" for warning in measured.warnings)
        return
    if calibration is None:
        return
    if calibration.device == target.device.title:
        yield f"time: the prediction is calibrated with {calibration.spread.source}"
    else:
        yield (
            f"time: the prediction is not calibrated, because the measurement was on {calibration.device}, not on "
            f"{target.device.title}"
        )


def changes(bounds: Sequence[Limit], proposed: Sequence[Proposal], target: Target) -> Iterator[str]:
    """Yield the smallest sufficient changes for each exceeded limit."""
    for limit in bounds:
        if limit.holds:
            continue
        if change := smallest_change(proposed, limit.kind):
            learning = "" if change.changes_learning else "; the training result stays the same"
            yield f"{limit.name}: {change.command} would be enough ({change.name}{learning})"
        gpu = _smallest_sufficient_gpu(target, round(limit.needs)) if limit.kind == "memory" else ""
        yield f"{limit.name}: {limit.enough} would be enough" + (f", for example {gpu}" if gpu else "")


def _smallest_sufficient_gpu(target: Target, memory_bytes: int) -> str:
    """Describe the catalogue's smallest GPU with at least `memory_bytes`; return "" if there is none."""
    gpu = smallest_gpu(memory_bytes)
    return f"{gpu.title} ({bytes_text(gpu.memory_bytes)})" if gpu and target.device.kind == "cuda" else ""


def _memory_reason(chosen: Candidate) -> str:
    memory = chosen.memory
    largest = max(memory.parts, key=lambda part: part.bytes)
    comparison = "which fits into" if memory.fits else "more than"
    return (
        f"memory: the run needs up to {bytes_text(memory.high_bytes)}, {comparison} the "
        f"{bytes_text(memory.capacity_bytes)} available; the largest part is {largest.name} "
        f"({bytes_text(largest.bytes)})"
    )


def _micro_batch_reason(candidates: Sequence[Candidate], loaded: LoadedRecipe, requested: Settings) -> str:
    chosen = candidates[0]
    size = chosen.settings.micro_batch
    larger = [
        candidate
        for candidate in _on_same_gpus(candidates)
        if candidate.fits and candidate.trace.micro_batch > chosen.trace.micro_batch
    ]
    if requested.micro_batch and requested.micro_batch > chosen.trace.micro_batch:
        reason = (
            f"{requested.micro_batch} was requested, but {_divided_samples(loaded, chosen.settings)}, which are "
            f"divided into microbatches of at most {chosen.trace.micro_batch}"
        )
    elif loaded.parts.learning.whole_batch:
        reason = "the recipe has whole_batch = True, so no update is split"
    elif requested.micro_batch:
        reason = "this value was requested"
    elif not chosen.memory.fits:
        reason = "no microbatch fits; this one needs the least memory"
    elif size == loaded.effective_batch:
        reason = "the whole effective batch fits, so no gradients are accumulated"
    elif size == samples_per_gpu(loaded.effective_batch, chosen.settings):
        reason = "a GPU's whole share of the effective batch fits, so no gradients are accumulated"
    elif larger and larger[0].settings.precision == chosen.settings.precision:
        best = larger[0]
        ratio = best.comparable_seconds / chosen.comparable_seconds
        reason = (
            f"{best.settings.micro_batch} fits too, but is predicted to take {ratio:.2f} times as long, because "
            "kernels are more efficient at some sizes"
        )
    else:
        reason = f"the fastest microbatch that fits, for an effective batch of {loaded.effective_batch}"
    unit = " packed rows" if chosen.settings.packing == "yes" else ""
    return f"micro_batch {size}{unit}: {reason}"


def _on_same_gpus(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that divide an update as the chosen one, the first, does."""
    chosen = candidates[0].settings
    return [
        candidate
        for candidate in candidates
        if (candidate.settings.gpus, candidate.settings.sharding) == (chosen.gpus, chosen.sharding)
    ]


def _divided_samples(loaded: LoadedRecipe, settings: Settings) -> str:
    samples = samples_per_shard(loaded.effective_batch, settings)
    if samples == loaded.effective_batch:
        return f"an update has {samples} samples"
    return f"each of its {settings.logical_shards} logical shards has {samples} samples"


def _checkpointing_reason(chosen: Candidate, facts: Facts) -> str:
    setting = chosen.settings.checkpointing
    count = "all" if setting == "full" else setting
    return (
        f"checkpointing {setting}: {count} of {facts.blocks} blocks save only their input and recompute their "
        "activations in backward; nothing that fits with fewer blocks is as fast"
    )


def _packing_reason(load: Load, chosen: Candidate, loaded: LoadedRecipe) -> str:
    order = "packed into rows" if chosen.settings.packing == "yes" else "sorted by length"
    speed = ""
    if chosen.seconds:
        tokens = (
            load.padded * (1 - load.padding) * (loaded.parts.data.capacity or 0) * loaded.effective_batch / load.samples
        )
        speed = f"; {tokens / chosen.seconds:,.0f} tokens a second"
    return f"samples are {order}, with which {load.padding:.0%} of a microbatch is padding{speed}"


def _precision_reason(candidates: Sequence[Candidate], target: Target, requested: Settings) -> str:
    chosen = candidates[0]
    name = chosen.settings.precision
    if requested.precision:
        return f"precision {name}: this value was requested"
    rivals = [candidate for candidate in _on_same_gpus(candidates) if candidate.settings.precision != name]
    if not rivals and len(target.device.precisions) > 1:
        return f"precision {name}: the arithmetic of fp32 alone would take longer"
    if not rivals:
        return f"precision {name}: the only one that {target.device.title} supports"
    fitting = [candidate for candidate in rivals if candidate.memory.fits]
    if chosen.memory.fits and not fitting:
        return f"precision {name}: {rivals[0].settings.precision} does not fit"
    rival = min(fitting or rivals, key=lambda candidate: candidate.seconds)
    if not chosen.seconds:
        return f"precision {name}: without known rates for the device, the precisions cannot be ranked by time"
    faster = rival.seconds / chosen.seconds
    if name != "fp32" and faster < TIE_RATIO:
        return (
            f"precision {name}: predicted to be {faster - 1:.0%} faster than {rival.settings.precision}, which is less "
            f"than the error of the prediction; precision={rival.settings.precision} rounds less"
        )
    return f"precision {name}: predicted to be {faster:.1f} times as fast as {rival.settings.precision}"
