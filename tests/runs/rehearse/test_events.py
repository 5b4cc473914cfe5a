"""What is read of the events that the processes of a script write."""

import json
import os

from shoestring.runs.rehearse.events import EventReader, read_notes

FRAME = {"file": "/home/me/train.py", "line": 49, "function": "main"}


def write(folder, pid, *events, end="\n"):
    with (folder / f"events.{pid}.jsonl").open("a") as file:
        file.write("\n".join(json.dumps(event) for event in events) + end)


def test_events_of_several_processes_are_read_while_they_are_written(tmp_path):
    reader = EventReader(tmp_path)
    write(
        tmp_path,
        7,
        {"kind": "process", "rank": 0},
        {"kind": "phase", "phase": "training"},
        {"kind": "update", "update": 1},
    )
    write(tmp_path, 8, {"kind": "process", "rank": 1})
    reader.read()
    assert reader.updates == 1 and reader.leading.pid == 7 and reader.leading.phase == "training"
    write(
        tmp_path,
        7,
        {"kind": "total", "total_updates": 90, "source": "transformers.Trainer"},
        {"kind": "update", "update": 2},
        end="",
    )
    reader.read()
    assert reader.updates == 1 and reader.leading.total_updates == 90
    write(tmp_path, 7, end="\n")
    reader.read()
    assert reader.updates == 2 and reader.processes[8].rank == 1


def test_out_of_memory_with_its_stack_and_holders_is_read(tmp_path):
    sizes = {"requested_bytes": 1, "allocated_bytes": 2, "reserved_bytes": 3, "free_bytes": 4}
    holder = {"bytes": 5, "count": 2, "kind": "weights", **FRAME}
    error = {
        "kind": "out_of_memory",
        "device": 1,
        "update": 161,
        "phase": "training",
        **sizes,
        "stack": [FRAME],
        "holders": [holder],
    }
    write(
        tmp_path, 7, error, {"kind": "exception", "type": "OutOfMemoryError", "message": "CUDA", "out_of_memory": True}
    )
    reader = EventReader(tmp_path)
    reader.read()
    process = reader.processes[7]
    assert process.errors[0].json() == {"device": 1, "update": 161, "phase": "training", **sizes, "stack": [FRAME]}
    assert process.holders[0].json() == holder
    assert process.exception_is_out_of_memory and process.exception == "OutOfMemoryError: CUDA"


def test_lines_that_are_no_events_are_left_out(tmp_path):
    lines = [
        b"\xff",
        b"[1]",
        b'{"kind": "update", "update": -1}',
        b'{"kind": "update", "update": "3"}',
        b'{"kind": "out_of_memory", "stack": 3, "holders": [1]}',
        b'{"kind": "files", "largest_total_bytes": "x"}',
    ]
    (tmp_path / "events.7.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    (tmp_path / "events.none.jsonl").write_text("{}\n")
    reader = EventReader(tmp_path)
    reader.read()
    assert reader.updates == 0 and len(reader.processes[7].errors) == 1 and reader.processes[7].written_bytes == 0


def test_largest_size_of_all_files_and_failures_of_observers_are_read(tmp_path):
    sizes = [{"kind": "files", "largest_total_bytes": 6}, {"kind": "files", "largest_total_bytes": 3}]
    write(tmp_path, 7, *sizes, {"kind": "observer_error", "function": "phases", "error": "KeyError"})
    reader = EventReader(tmp_path)
    reader.read()
    assert reader.processes[7].written_bytes == 6 and reader.processes[7].observer_errors == ["phases: KeyError"]


def test_files_that_are_none_are_left_out(tmp_path):
    os.mkfifo(tmp_path / "events.3.jsonl")
    (tmp_path / "events.4.jsonl").symlink_to("/dev/zero")
    (tmp_path / "events.5.jsonl").mkdir()
    (tmp_path / "notes.6").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "notes.7")
    write(tmp_path, 9, {"kind": "update", "update": 2})
    reader = EventReader(tmp_path)
    reader.read()
    assert reader.updates == 2 and read_notes(tmp_path) == []


def test_numbers_texts_and_lines_without_bounds_are_left_out(tmp_path):
    huge = b"9" * 5000
    lines = [
        b'{"kind": "update", "update": %b}' % huge,
        b'{"kind": "files", "largest_total_bytes": %b}' % huge,
        b"[" * 100_000,
        b'{"kind": "phase", "phase": "%b"}' % (b"x" * 100_000),
        b'{"kind": "update", "update": 3}',
    ]
    (tmp_path / "events.7.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    (tmp_path / "events.8.jsonl").write_bytes(b"x" * (40 * 2**20) + b'\n{"kind": "update", "update": 5}\n')
    (tmp_path / "notes.7").write_bytes(b'{"kind": "assumed", "count": %b}\n' % huge + b"[" * 100_000 + b"\n{}\n")
    reader = EventReader(tmp_path)
    for _ in range(4):
        reader.read()
    assert (reader.processes[7].updates, len(reader.processes[7].phase)) == (3, 2000)
    assert reader.processes[8].updates == 5
    assert read_notes(tmp_path) == [{}]


def test_many_errors_and_processes_are_counted_but_not_all_kept(tmp_path):
    write(tmp_path, 7, *[{"kind": "out_of_memory", "update": update} for update in range(500)])
    for pid in range(100, 1300):
        write(tmp_path, pid, {"kind": "update", "update": 1})
    reader = EventReader(tmp_path)
    reader.read()
    process = reader.processes[7]
    assert (process.error_count, len(process.errors), process.errors[-1].update) == (500, 200, 499)
    assert len(reader.processes) == 1000


def test_notes_are_read_line_by_line(tmp_path):
    (tmp_path / "notes.7").write_text('{"kind": "missing", "function": "cudaFoo"}\nno json\n[]\n')
    assert read_notes(tmp_path) == [{"kind": "missing", "function": "cudaFoo"}]
