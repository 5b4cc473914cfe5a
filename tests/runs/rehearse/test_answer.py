"""How the records of a script's processes become an answer."""

import json

import pytest

from shoestring.hardware.targets import find
from shoestring.planning.simulator.statistics import DeviceStatistics, PhasePeak, ProcessStatistics
from shoestring.runs.rehearse import answer
from shoestring.runs.rehearse.events import EventReader, ProcessEvents
from shoestring.runs.rehearse.processes import Outcome
from shoestring.runs.rehearse.rehearsal import OutOfMemory

TARGET = find("kaggle-t4x2")
CONTEXT = TARGET.device.context_bytes[1]
GIB = 2**30


def statistics(pid, index, allocated, reserved):
    device = DeviceStatistics(
        index=index,
        allocated_bytes=0,
        reserved_bytes=0,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        out_of_memory_events=0,
        phases={"training": PhasePeak(allocated_bytes=allocated, reserved_bytes=reserved)},
        timeline=(),
    )
    return ProcessStatistics(pid=pid, devices=(device,))


def peaks(processes, combined=(), visible=None, events=None):
    renumbered = [answer._by_gpu(process, (visible or {}).get(process.pid, ())) for process in processes]
    return [
        (device.peak_allocated_bytes // GIB, device.peak_reserved_bytes // GIB, device.outside_bytes // CONTEXT)
        for device in answer._devices(renumbered, TARGET, combined, events or {})
    ]


def test_processes_with_a_visible_gpu_each_are_on_their_own_one():
    processes = [statistics(7, 0, 4 * GIB, 5 * GIB), statistics(8, 0, 6 * GIB, 7 * GIB)]
    assert peaks(processes, visible={7: (0,), 8: (1,)}) == [(4, 5, 1), (6, 7, 1)]


def test_processes_that_share_a_gpu_are_added():
    processes = [statistics(7, 0, 2 * GIB, 3 * GIB), statistics(8, 0, 2 * GIB, 3 * GIB)]
    assert peaks(processes, [6 * GIB + 2 * CONTEXT, 0])[0] == (4, 6, 2)


def test_processes_that_ran_one_after_the_other_are_not_added():
    processes = [statistics(pid, 0, 8 * GIB, 9 * GIB) for pid in (7, 8, 9)]
    assert peaks(processes, [9 * GIB + CONTEXT, 0])[0] == (9, 9, 1)
    small = [statistics(pid, 0, GIB, GIB) for pid in (7, 8, 9)]
    events = {
        7: ProcessEvents(7, start_time=1.0, end_time=2.0),
        8: ProcessEvents(8, start_time=3.0, end_time=5.0),
        9: ProcessEvents(9, start_time=4.0),
    }
    assert peaks(small, [2 * GIB + 9 * CONTEXT, 0], events=events)[0] == (2, 2, 2)


def process(pid=7, updates=0, error_at=None, exception="", is_out_of_memory=False, stopped=False):
    errors = []
    if error_at is not None:
        sizes = dict.fromkeys(("requested_bytes", "allocated_bytes", "reserved_bytes", "free_bytes"), 0)
        errors = [OutOfMemory(device=0, update=error_at, phase="training", stack=(), **sizes)]
    return ProcessEvents(
        pid,
        updates=updates,
        errors=errors,
        exception=exception,
        exception_is_out_of_memory=is_out_of_memory,
        stopped=stopped,
    )


@pytest.mark.parametrize(
    ("processes", "status", "end"),
    [
        ([process(updates=3)], 0, "finished"),
        ([process(updates=3)], 3, "failed"),
        ([process(updates=3)], -11, "failed"),
        ([process(updates=3)], None, "failed"),
        ([process(updates=3, stopped=True)], 0, "stopped"),
        ([process(error_at=4, updates=3, exception="OutOfMemoryError", is_out_of_memory=True)], 1, "out of memory"),
        # The script has caught the error, and given up or gone on.
        ([process(error_at=4, updates=3)], 1, "out of memory"),
        ([process(error_at=0)], 1, "out of memory"),
        ([process(error_at=4, updates=9)], 1, "failed"),
        ([process(error_at=4, updates=3, exception="ValueError: x")], 1, "failed"),
        # The error was that of another process, or of a thread, and the script went on.
        ([process(updates=3), process(8, exception="OutOfMemoryError", is_out_of_memory=True)], 0, "finished"),
    ],
)
def test_end_of_a_script(tmp_path, processes, status, end):
    reader = EventReader(tmp_path)
    reader.processes = {one.pid: one for one in processes}
    outcome = Outcome(ending="exited", status=status, host_peak_bytes=1)
    assert answer._end(outcome, reader)[0] == end
    notes = list(answer._other_errors(end, reader))
    assert bool(notes) == (end == "finished" and len(processes) == 2)


@pytest.mark.parametrize(
    ("status", "error"),
    [(3, ""), (-11, "ended by SIGSEGV"), (-36, "ended by signal 36"), (None, "how it ended is not")],
)
def test_signal_that_ended_a_script_is_named(status, error):
    outcome = Outcome(ending="exited", status=status, host_peak_bytes=1)
    assert answer._error(outcome, None).startswith(error)
    assert answer._error(outcome, process(exception="ValueError: x")) == "ValueError: x"


def test_first_error_of_several_processes_is_that_of_the_script(tmp_path):
    reader = EventReader(tmp_path)
    for pid, seconds in ((7, 12.0), (8, 11.5), (9, 12.5)):
        event = {"kind": "exception", "time": seconds, "type": "ValueError", "message": f"of {pid}"}
        (tmp_path / f"events.{pid}.jsonl").write_text(json.dumps(event) + "\n")
    reader.read()
    outcome = Outcome(ending="exited", status=1, host_peak_bytes=1)
    assert answer._end(outcome, reader)[1].exception == "ValueError: of 8"


def test_notes_of_any_kind_are_bounded():
    notes = [
        {"kind": "assumed", "operator": 3, "count": "many"},
        {"kind": "assumed", "operator": "x" * 10_000, "count": float("nan")},
        {"kind": "assumed", "operator": ["aten::mm"], "count": -5},
        {"kind": "read", "operator": None, "file": {"a": 1}, "line": "7"},
        *({"kind": "read", "operator": str(number)} for number in range(5000)),
        {"kind": "missing", "function": ["x"]},
    ]
    texts = answer._assumed(notes)
    assert len(texts) < 1100 and max(map(len, texts)) < 2000
