"""The answer of a rehearsal, put together from what its processes have written."""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoestring.base.reading import is_count
from shoestring.base.units import bytes_text, count_text
from shoestring.hardware.catalog import Target
from shoestring.planning.simulator import ledger
from shoestring.planning.simulator.statistics import ProcessStatistics, read_statistics
from shoestring.planning.simulator.torch_builds import Interpreter, TorchBuild
from shoestring.runs.rehearse.command import LAUNCHERS
from shoestring.runs.rehearse.events import EventReader, ProcessEvents, read_notes
from shoestring.runs.rehearse.private import shared
from shoestring.runs.rehearse.processes import Outcome
from shoestring.runs.rehearse.proposals import proposals
from shoestring.runs.rehearse.rehearsal import DevicePeak, End, MemoryPoint, PhasePeak, Rehearsal
from shoestring.runs.rehearse.request import RehearsalRequest
from shoestring.runs.rehearse.times import predicted_times

_MOST_TOGETHER = 2**53
_MOST_TEXTS = 1000
_MOST_CHARACTERS = 500
_PHASES = ("loading", "training", "evaluation", "generation", "saving")


def answer(
    request: RehearsalRequest,
    interpreter: Interpreter,
    build: TorchBuild,
    records: Path,
    reader: EventReader,
    outcome: Outcome,
    seconds: float,
    current: Path,
) -> Rehearsal:
    """Return what became of the script, without the paths of this machine; `current` is the folder it began in."""
    visible = ledger.visible_gpus(records)
    statistics = [_by_gpu(process, visible.get(process.pid, ())) for process in read_statistics(records)]
    leading = reader.leading
    end, failing = _end(outcome, reader)
    error = failing.errors[-1] if end == "out of memory" and failing and failing.errors else None
    if error and failing:
        error = replace(error, device=_gpu(error.device, visible.get(failing.pid, ())))
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
            error=_error(outcome, failing) if end == "failed" else "",
            updates=reader.updates,
            total_updates=total,
            total_source="--total-updates" if request.total_updates else leading.total_source if leading else "",
            devices=_devices(statistics, request.target, ledger.peak_bytes(records), reader.processes),
            phases=_phases(statistics, times.phases),
            out_of_memory=error,
            survived_out_of_memory=sum(process.error_count for process in reader.processes.values()) - bool(error),
            holders=holders,
            timeline=_timeline(statistics),
            time=times.update,
            session_seconds=request.session_seconds or platform_seconds,
            host_peak_bytes=outcome.host_peak_bytes or None,
            disk_bytes=sum(process.written_bytes for process in reader.processes.values()),
            assumed=_assumed(read_notes(records)),
            proposals=proposals(error, holders, capacity) if error else (),
            notes=(
                *_notes(request, end, statistics, used_gpu, outcome),
                *_other_errors(end, reader),
                *times.notes,
                *_unobserved(reader),
            ),
            seconds=seconds,
            used_gpu=used_gpu,
            private_folders=(str(records.parent), *map(str, interpreter.sites), str(build.folder.parent)),
        ),
        current=current,
    )


def _script(request: RehearsalRequest) -> str:
    if request.recipe or request.recipe_file:
        return request.recipe or str(request.recipe_file)
    if request.module in LAUNCHERS:
        return str(request.module)
    return f"-m {request.module}" if request.module else str(request.script)


def _end(outcome: Outcome, reader: EventReader) -> tuple[End, ProcessEvents | None]:
    """Return how the script ended, and the process whose error ended it."""
    processes = sorted(reader.processes.values(), key=lambda process: process.failed)
    out_of_memory = next((process for process in processes if process.exception_is_out_of_memory), None)
    failed = next((process for process in processes if process.exception), None)
    if outcome.ending != "exited":
        return outcome.ending, out_of_memory or failed
    if any(process.stopped for process in processes) and not failed:
        return "stopped", None
    if outcome.status == 0:  # whatever happened in a thread or another process, the script went on
        return "finished", None
    if out_of_memory:
        return "out of memory", out_of_memory
    # A script may catch the error and give up, so that nothing but its status tells.
    gave_up = next((process for process in processes if process.errors and _is_last(process)), None)
    if gave_up and not failed and outcome.status is not None and outcome.status > 0:
        return "out of memory", gave_up
    return "failed", failed


def _error(outcome: Outcome, failing: ProcessEvents | None) -> str:
    """Return what a failed script's error was: its exception or the signal; empty if neither is known."""
    if failing and failing.exception:
        return failing.exception
    if outcome.status is None:
        return "how it ended is not known: it has killed the process that started it"
    with suppress(ValueError):
        return f"ended by {signal.Signals(-outcome.status).name}" if outcome.status < 0 else ""
    return f"ended by signal {-outcome.status}"


def _is_last(process: ProcessEvents) -> bool:
    """Return whether no update was made after the last out-of-memory error."""
    error = process.errors[-1]
    return process.updates <= max(0, error.update - 1)


def _gpu(device: int, visible: Sequence[int]) -> int:
    """Return which GPU of the machine a process's device is: CUDA_VISIBLE_DEVICES numbers them anew."""
    return visible[device] if device < len(visible) else device


def _by_gpu(process: ProcessStatistics, visible: Sequence[int]) -> ProcessStatistics:
    devices = (replace(device, index=_gpu(device.index, visible)) for device in process.devices)
    return replace(process, devices=tuple(devices))


def _devices(
    statistics: Sequence[ProcessStatistics],
    target: Target,
    combined: Sequence[int],
    events: Mapping[int, ProcessEvents],
) -> tuple[DevicePeak, ...]:
    """Return the peaks of each GPU.

    Those of processes that used one at the same time are added, but to no more than what all used `combined` at any
    time.
    """
    context = target.device.context_bytes[1]
    peaks = []
    for index in range(target.gpus):
        used = [
            (process.pid, device)
            for process in statistics
            for device in process.devices
            if device.index == index and device.peak_reserved_bytes
        ]
        # Most processes run when one of them begins.
        groups = [[device for other, device in used if _is_running(events, other, pid)] for pid, _ in used]
        fullest = max(groups, key=lambda group: sum(device.peak_reserved_bytes for device in group), default=[])
        limit = combined[index] if index < len(combined) and combined[index] else _MOST_TOGETHER
        reserved = _sum_within([device.peak_reserved_bytes for device in fullest], limit - context)
        peaks.append(
            DevicePeak(
                index=index,
                peak_allocated_bytes=_sum_within([device.peak_allocated_bytes for device in fullest], reserved),
                peak_reserved_bytes=reserved,
                outside_bytes=_sum_within([context for _ in fullest], limit - reserved),
                capacity_bytes=target.device.memory_bytes,
            )
        )
    return tuple(peaks)


def _is_running(events: Mapping[int, ProcessEvents], pid: int, beginning: int) -> bool:
    """Return whether a process ran when another one began; True if that is not known."""
    if pid not in events or beginning not in events:
        return True
    return events[pid].start_time <= events[beginning].start_time <= events[pid].end_time


def _sum_within(sizes: Sequence[int], limit: int) -> int:
    """Return the sum, but not more than `most` unless one alone is."""
    return max(min(sum(sizes), limit), max(sizes, default=0))


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
                count: Any = note.get("count")
                assumed[_short(note.get("operator"))] += count if is_count(count) else 1
            case "read" if len(texts) < _MOST_TEXTS:
                place = (
                    f" at {_short(note['file'])}:{note['line']}"
                    if note.get("file") and is_count(note.get("line"))
                    else ""
                )
                texts[f"a value that was assumed was read by the host{place}"] = None
            case "missing":
                missing[_short(note.get("function"))] = None
    if assumed:
        largest = sorted(assumed, key=lambda name: -assumed[name])
        names = ", ".join(name.removeprefix("aten::") for name in largest[:4])
        remainder = f" and {len(largest) - 4} others" if len(largest) > 4 else ""
        texts = {f"results of large tensors were not computed ({names}{remainder})": None, **texts}
    if missing:
        texts[f"functions of CUDA that are not simulated were called: {', '.join(list(missing)[:6])}"] = None
    return tuple(texts)


def _short(value: object) -> str:
    """Return a text that the script's processes wrote, within bounds."""
    return value[:_MOST_CHARACTERS] if isinstance(value, str) else "?"


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


def _other_errors(end: End, reader: EventReader) -> Iterable[str]:
    """Yield the first error of a thread or another process that did not end the script."""
    errors = [process.exception for process in reader.processes.values() if process.exception]
    if end in ("finished", "stopped") and errors:
        addition = f" ({count_text(len(errors))} processes)" if len(errors) > 1 else ""
        yield f"an error of a thread or of another process did not end the script{addition}: {errors[0]}"


def _unobserved(reader: EventReader) -> Iterable[str]:
    for error in dict.fromkeys(error for process in reader.processes.values() for error in process.observer_errors):
        yield f"a part of this answer is missing, since observing the script failed in {error}"


def _uses(statistics: Sequence[ProcessStatistics], index: int) -> bool:
    return any(
        device.index == index and device.peak_reserved_bytes for process in statistics for device in process.devices
    )
