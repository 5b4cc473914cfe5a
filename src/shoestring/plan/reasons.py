"""Why a plan is as it is, in words."""

from shoestring.hardware.catalog import Target
from shoestring.plan.costs import PlannedDisk
from shoestring.plan.search import CLOSE, Candidate
from shoestring.plan.sessions import PlannedSession
from shoestring.recipe import LoadedRecipe
from shoestring.settings import Settings
from shoestring.trace.record import Facts
from shoestring.units import bytes_text


def reasons(
    candidates: list[Candidate],
    loaded: LoadedRecipe,
    target: Target,
    wanted: Settings,
    facts: Facts,
    disk: PlannedDisk,
    planned: list[PlannedSession] | None,
) -> list[str]:
    """Why the first of the candidates was chosen, and everything a person should know before believing it."""
    chosen = candidates[0]
    settings = chosen.settings
    said = [_memory_reason(chosen), _micro_batch_reason(chosen, loaded, wanted)]
    said.append(_precision_reason(candidates, target, wanted))
    if settings.checkpointing == "full" and wanted.checkpointing is None:
        said.append("checkpointing full: without it not even the smallest microbatch fits")
    if settings.compile != "no":
        said.append("compile: memory and time of compiled steps are not estimated; these are the plain one's")
    if facts.batch_norm and settings.micro_batch != loaded.effective_batch:
        said.append(
            f"BatchNorm takes its statistics from each microbatch of {settings.micro_batch}, so another microbatch "
            "learns a little differently"
        )
    if chosen.time is None:
        said.append(f"no time: nobody knows the rates of {target.device.title}; the first updates will tell")
    if facts.samples is None:
        said.append("no epochs, sessions or total time: the recipe has no data()")
    if planned is None:
        said.append("a session ends before its first update could be done and saved")
    if not disk.fits and disk.limit_bytes is not None:
        said.append(
            f"the run's checkpoints take {bytes_text(disk.peak_bytes)}, of which {target.name} keeps "
            f"{bytes_text(disk.limit_bytes)}"
        )
    if target.gpus > 1:
        said.append(f"one of the {target.gpus} GPUs is used: this version cannot train on several yet")
    return said


def _memory_reason(chosen: Candidate) -> str:
    memory = chosen.memory
    largest = max(memory.parts, key=lambda part: part.bytes)
    return (
        f"memory: up to {bytes_text(memory.high_bytes)} of {bytes_text(memory.capacity_bytes)} "
        f"{'fits' if memory.fits else 'is too much'}; the largest part is {largest.name} ({bytes_text(largest.bytes)})"
    )


def _micro_batch_reason(chosen: Candidate, loaded: LoadedRecipe, wanted: Settings) -> str:
    size = chosen.settings.micro_batch
    if wanted.micro_batch:
        why = "as asked"
    elif not chosen.memory.fits:
        why = "not even that fits"
    elif size == loaded.effective_batch:
        why = "the whole effective batch fits, so nothing is accumulated"
    else:
        why = f"the largest halving of {loaded.effective_batch} that fits"
    return f"micro_batch {size}: {why}"


def _precision_reason(candidates: list[Candidate], target: Target, wanted: Settings) -> str:
    chosen = candidates[0]
    name = chosen.settings.precision
    if wanted.precision:
        return f"precision {name}: as asked"
    others = [other for other in candidates[1:] if other.settings.precision != name]
    if not others:
        return f"precision {name}: what {target.device.title} has"
    rival = min(others, key=lambda other: other.seconds)
    if chosen.memory.fits and not rival.memory.fits:
        return f"precision {name}: {rival.settings.precision} does not fit"
    if not chosen.seconds or rival.seconds < chosen.seconds * CLOSE:
        return f"precision {name}: {rival.settings.precision} is not predicted to be 10% faster"
    return (
        f"precision {name}: predicted {rival.seconds / chosen.seconds:.1f} times as fast as {rival.settings.precision}"
    )
