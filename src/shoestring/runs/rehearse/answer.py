"""The answer of a rehearsal, put together from what its processes have written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoestring.base.units import bytes_text
from shoestring.hardware.catalog import Target
from shoestring.planning.simulator.statistics import ProcessStatistics, read_statistics
from shoestring.planning.simulator.torch_builds import Interpreter, TorchBuild
from shoestring.runs.rehearse.events import EventReader, ProcessEvents, read_notes
from shoestring.runs.rehearse.private import shared
from shoestring.runs.rehearse.processes import Outcome
from shoestring.runs.rehearse.proposals import proposals
from shoestring.runs.rehearse.rehearsal import DevicePeak, End, MemoryPoint, PhasePeak, Rehearsal
from shoestring.runs.rehearse.request import RehearsalRequest
from shoestring.runs.rehearse.times import predicted_times

_PHASES = ("loading", "training", "evaluation", "generation", "saving")


def answer(
    request: RehearsalRequest,
    interpreter: Interpreter,
    build: TorchBuild,
    records: Path,
    reader: EventReader,
    outcome: Outcome,
    seconds: float,
) -> Rehearsal:
    """Return what became of the script, without the paths of this machine."""
    statistics = read_statistics(records)
    leading = reader.leading
    end, failing = _end(outcome, reader)
    error = failing.errors[-1] if end == "out of memory" and failing and failing.errors else None
    holders = tuple(failing.holders) if error and failing else ()
    platform = request.target.platform
    platform_seconds = platform.session_hours * 3600 if platform and platform.session_hours else None
    total = request.total_updates or (leading.total_updates if leading else None)
    capacity = request.target.device.memory_bytes
    ranks = sum(process.updates > 0 for process in reader.processes.values())
    times = predicted_times(records, request.target, ranks)
    used_gpu = any(device.peak_reserved_bytes for process in statistics for device in process.devices)
    return shared(
        Rehearsal(
            script=_script(request),
            command=request.command,
            target=request.target,
            python=interpreter.python,
            torch=build.version,
            stack=request.stack,
            values=request.values,
            end=end,
            exit_status=outcome.status,
            error=failing.exception if failing and end == "failed" else "",
            updates=reader.updates,
            total_updates=total,
            total_source="--total-updates" if request.total_updates else leading.total_source if leading else "",
            devices=_devices(statistics, request.target),
            phases=_phases(statistics, times.phases),
            out_of_memory=error,
            survived_out_of_memory=sum(len(process.errors) for process in reader.processes.values()) - bool(error),
            holders=holders,
            timeline=_timeline(statistics),
            time=times.update,
            session_seconds=request.session_seconds or platform_seconds,
            host_peak_bytes=outcome.host_peak_bytes or None,
            disk_bytes=sum(process.written_bytes for process in reader.processes.values()),
            assumed=_assumed(read_notes(records)),
            proposals=proposals(error, holders, capacity) if error else (),
            notes=(*_notes(request, end, statistics, used_gpu, outcome), *times.notes, *_unobserved(reader)),
            seconds=seconds,
            used_gpu=used_gpu,
            private_folders=(str(records.parent), *map(str, interpreter.sites), str(build.folder.parent)),
        )
    )


def _script(request: RehearsalRequest) -> str:
    if request.recipe or request.recipe_file:
        return request.recipe or str(request.recipe_file)
    return f"-m {request.module}" if request.module else str(request.script)


def _end(outcome: Outcome, reader: EventReader) -> tuple[End, ProcessEvents | None]:
    """Return how the script ended, and the process whose error ended it."""
    processes = list(reader.processes.values())
    out_of_memory = next((process for process in processes if process.exception_is_out_of_memory), None)
    failed = next((process for process in processes if process.exception), None)
    if outcome.ending != "exited":
        return outcome.ending, out_of_memory or failed
    if any(process.stopped for process in processes) and not failed:
        return "stopped", None
    if out_of_memory:
        return "out of memory", out_of_memory
    if outcome.status:
        return "failed", failed
    return "finished", None


def _devices(statistics: Sequence[ProcessStatistics], target: Target) -> tuple[DevicePeak, ...]:
    """Return the peaks of each GPU; those of several processes on one GPU are added, as if they came together."""
    allocated: dict[int, int] = defaultdict(int)
    reserved: dict[int, int] = defaultdict(int)
    outside: dict[int, int] = defaultdict(int)
    for process in statistics:
        for device in process.devices:
            allocated[device.index] += device.peak_allocated_bytes
            reserved[device.index] += device.peak_reserved_bytes
            if device.peak_reserved_bytes:
                outside[device.index] += target.device.context_bytes[1]
    return tuple(
        DevicePeak(
            index=index,
            peak_allocated_bytes=allocated[index],
            peak_reserved_bytes=reserved[index],
            outside_bytes=outside[index],
            capacity_bytes=target.device.memory_bytes,
        )
        for index in range(target.gpus)
    )


def _phases(statistics: Sequence[ProcessStatistics], seconds: Mapping[str, float]) -> tuple[PhasePeak, ...]:
    allocated: dict[str, int] = defaultdict(int)
    reserved: dict[str, int] = defaultdict(int)
    for process in statistics:
        for device in process.devices:
            for name, peak in device.phases.items():
                allocated[name] = max(allocated[name], peak.allocated_bytes)
                reserved[name] = max(reserved[name], peak.reserved_bytes)
    return tuple(
        PhasePeak(
            name=name,
            peak_allocated_bytes=allocated[name],
            peak_reserved_bytes=reserved[name],
            seconds=seconds.get(name),
        )
        for name in _PHASES
        if reserved[name]
    )


def _timeline(statistics: Sequence[ProcessStatistics]) -> tuple[MemoryPoint, ...]:
    """Return the points in time of the GPU that used most."""
    devices = [device for process in statistics for device in process.devices]
    if not devices:
        return ()
    fullest = max(devices, key=lambda device: device.peak_reserved_bytes)
    return tuple(
        MemoryPoint(
            device=fullest.index,
            update=sample.update,
            phase=sample.phase,
            allocated_bytes=sample.allocated_bytes,
            reserved_bytes=sample.reserved_bytes,
        )
        for sample in fullest.timeline
    )


def _assumed(notes: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return what was assumed in place of computed, one text for each kind of note."""
    assumed: dict[str, int] = defaultdict(int)
    texts: dict[str, None] = {}
    missing: dict[str, None] = {}
    for note in notes:
        match note.get("kind"):
            case "assumed":
                assumed[str(note.get("operator"))] += int(note.get("count") or 1)
            case "read":
                place = f" at {note['file']}:{note['line']}" if note.get("file") and note.get("line") else ""
                texts[f"the script read a value that was assumed{place}: {note.get('operator')}"] = None
            case "missing":
                missing[str(note.get("function"))] = None
    if assumed:
        largest = sorted(assumed, key=lambda name: -assumed[name])
        names = ", ".join(name.removeprefix("aten::") for name in largest[:4])
        remainder = f" and {len(largest) - 4} others" if len(largest) > 4 else ""
        texts = {f"results of large tensors were not computed ({names}{remainder})": None, **texts}
    if missing:
        texts[f"functions of CUDA that are not simulated were called: {', '.join(list(missing)[:6])}"] = None
    return tuple(texts)


def _notes(
    request: RehearsalRequest, end: End, statistics: Sequence[ProcessStatistics], used_gpu: bool, outcome: Outcome
) -> Iterable[str]:
    if not used_gpu:
        yield "the script has allocated nothing on a GPU"
    elif request.target.gpus > 1 and sum(_uses(statistics, index) for index in range(request.target.gpus)) == 1:
        yield (
            f"only one of {request.target.gpus} GPUs was used; a process for each GPU: "
            f"shoestring rehearse torchrun -- --nproc-per-node={request.target.gpus} {_script(request)}"
        )
    if end == "host memory":
        yield (
            "the script was ended because this machine had almost no memory left; its processes used "
            f"{bytes_text(outcome.host_peak_bytes)}"
        )
    ram = request.target.platform.ram_bytes if request.target.platform else None
    if ram and outcome.host_peak_bytes > ram:
        yield (
            f"its processes used {bytes_text(outcome.host_peak_bytes)} of host memory, and {request.target.name} has "
            f"{bytes_text(ram)}"
        )


def _unobserved(reader: EventReader) -> Iterable[str]:
    for error in dict.fromkeys(error for process in reader.processes.values() for error in process.observer_errors):
        yield f"a part of this answer is missing, since observing the script failed in {error}"


def _uses(statistics: Sequence[ProcessStatistics], index: int) -> bool:
    return any(
        device.index == index and device.peak_reserved_bytes for process in statistics for device in process.devices
    )
