"""Why a plan is as it is, in words."""

from collections.abc import Iterator, Sequence

from shoestring.estimate.calibration import Calibration
from shoestring.hardware.catalog import Target
from shoestring.plan.candidates import Candidate
from shoestring.plan.limits import Limit
from shoestring.plan.proposals import Proposal, next_device, smallest
from shoestring.plan.search import CLOSE
from shoestring.recipe.options import LoadedRecipe
from shoestring.settings import Settings
from shoestring.trace.record import Facts
from shoestring.units import bytes_text


def reasons(
    candidates: Sequence[Candidate],
    loaded: LoadedRecipe,
    target: Target,
    wanted: Settings,
    facts: Facts,
    bounds: Sequence[Limit],
) -> list[str]:
    """Why the first of the candidates was chosen, and everything a person should know before believing it."""
    chosen = candidates[0]
    settings = chosen.settings
    said = [_memory_reason(chosen), _micro_batch_reason(candidates, loaded, wanted)]
    said.append(_precision_reason(candidates, target, wanted))
    if settings.checkpointing not in ("no", None) and wanted.checkpointing is None:
        said.append(_checkpointing_reason(chosen, facts))
    if settings.optimizer_kernel and not wanted.optimizer_kernel:
        said.append(f"optimizer_kernel {settings.optimizer_kernel}: one launch for all weights, without copies of them")
    if settings.compile == "yes":
        said.append("compile yes: memory and time are those without it; compiled blocks are not estimated")
    if settings.cuda_graphs:
        said.append("compile graphs: time without the host's share of microbatches; memory as without graphs")
    if facts.batch_norm and settings.micro_batch != loaded.effective_batch:
        said.append(
            f"BatchNorm takes its statistics from each microbatch of {settings.micro_batch}, so another microbatch "
            "learns a little differently"
        )
    if chosen.time is None:
        said.append(f"no time: nobody knows the rates of {target.device.title}; the first updates will tell")
    if facts.samples is None:
        said.append("no epochs, sessions or total time: the recipe has no data()")
    said += [
        f"{limit.name}: {limit.text(limit.needs)} are more than the {limit.text(limit.has)} there are"
        for limit in bounds[1:]
        if not limit.holds
    ]
    if target.gpus > 1:
        said.append(f"one of the {target.gpus} GPUs is used: this version cannot train on several yet")
    return said


def calibration_reason(calibration: Calibration | None, target: Target) -> Iterator[str]:
    """What a measured run has changed, or why it has changed nothing."""
    if calibration is None:
        return
    if calibration.device == target.device.title:
        yield f"time: calibrated with {calibration.spread.source}"
    else:
        here = target.device.title
        yield f"time: not calibrated: that run was on {calibration.device}, which tells nothing of {here}"


def changes(bounds: Sequence[Limit], proposed: Sequence[Proposal], target: Target) -> Iterator[str]:
    """For each limit that is exceeded the smallest change that would do."""
    for limit in bounds:
        if limit.holds:
            continue
        if change := smallest(proposed, limit.kind):
            learning = "" if change.changes_learning else ", with the same learning"
            yield f"{limit.name}: {change.command} ({change.name}{learning})"
        larger = next_device(target, round(limit.needs)) if limit.kind == "memory" else ""
        yield f"{limit.name}: {limit.enough}" + (f", as {larger}" if larger else "")


def _memory_reason(chosen: Candidate) -> str:
    memory = chosen.memory
    largest = max(memory.parts, key=lambda part: part.bytes)
    return (
        f"memory: up to {bytes_text(memory.high_bytes)} of {bytes_text(memory.capacity_bytes)} "
        f"{'fits' if memory.fits else 'is too much'}; the largest part is {largest.name} ({bytes_text(largest.bytes)})"
    )


def _micro_batch_reason(candidates: Sequence[Candidate], loaded: LoadedRecipe, wanted: Settings) -> str:
    chosen = candidates[0]
    size = chosen.settings.micro_batch
    larger = [each for each in candidates[1:] if each.fits and (each.trace.micro_batch > chosen.trace.micro_batch)]
    if wanted.micro_batch and wanted.micro_batch > chosen.trace.micro_batch:
        why = f"as asked, but an update has {loaded.effective_batch}, in parts of {chosen.trace.micro_batch} at most"
    elif wanted.micro_batch:
        why = "as asked"
    elif not chosen.memory.fits:
        why = "not even that fits"
    elif size == loaded.effective_batch:
        why = "the whole effective batch fits, so nothing is accumulated"
    elif larger and larger[0].settings.precision == chosen.settings.precision:
        best = larger[0]
        why = (
            f"{best.settings.micro_batch} fits too and is predicted to take {best.seconds / chosen.seconds:.2f} times "
            "as long: kernels waste less at some sizes"
        )
    else:
        why = f"the fastest part of {loaded.effective_batch} that fits"
    return f"micro_batch {size}: {why}"


def _checkpointing_reason(chosen: Candidate, facts: Facts) -> str:
    setting = chosen.settings.checkpointing
    which = "all" if setting == "full" else setting
    return (
        f"checkpointing {setting}: {which} of {facts.blocks} blocks keep their input alone, and are computed again in "
        "backward; with fewer nothing that fits is as fast"
    )


def _precision_reason(candidates: Sequence[Candidate], target: Target, wanted: Settings) -> str:
    chosen = candidates[0]
    name = chosen.settings.precision
    if wanted.precision:
        return f"precision {name}: as asked"
    others = [other for other in candidates[1:] if other.settings.precision != name]
    if not others and len(target.device.precisions) > 1:
        return f"precision {name}: fp32 would take longer for its arithmetic alone"
    if not others:
        return f"precision {name}: what {target.device.title} has"
    fitting = [other for other in others if other.memory.fits]
    if chosen.memory.fits and not fitting:
        return f"precision {name}: {others[0].settings.precision} does not fit"
    rival = min(fitting or others, key=lambda other: other.seconds)
    if not chosen.seconds:
        return f"precision {name}: nothing tells the types apart"
    faster = rival.seconds / chosen.seconds
    if name != "fp32" and faster < CLOSE:
        return (
            f"precision {name}: predicted {faster - 1:.0%} faster than {rival.settings.precision}, which is less than "
            f"a prediction can tell; precision={rival.settings.precision} rounds less"
        )
    return f"precision {name}: predicted {faster:.1f} times as fast as {rival.settings.precision}"
