"""The memory statistics of simulated processes, as `native/torch/statistics.h` lays them out."""

import struct

import pytest

from shoestring.planning.simulator.statistics import PHASES, PhasePeak, Sample, read_statistics

SAMPLES = 4


def device_record(*, changes=2, events=3, count=2):
    record = struct.pack("<9Q", changes, events, 512, 2048, 1024, 4096, 1, 1, count)
    record += struct.pack("<3Q", 1, 512, 2048) + struct.pack("<3Q", 1, 1024, 4096) + bytes(24 * 4)
    record += struct.pack("<3Q2q", 1, 512, 2048, 0, 0) + struct.pack("<3Q2q", 3, 1024, 4096, 7, 1)
    return record + bytes(40 * (SAMPLES - 2))


def write(folder, *records, pid=17, magic=b"SHOESTAT", version=1, phases=6):
    size = 72 + 24 * 6 + 40 * SAMPLES
    header = struct.pack("<8s6Iq3Q", magic, 64, size, len(records), phases, SAMPLES, version, pid, 0, 0, 0)
    path = folder / f"statistics.{pid}"
    path.write_bytes(header + b"".join(records))
    return path


def test_devices_that_were_used_are_read(tmp_path):
    write(tmp_path, device_record(events=0), device_record())
    (process,) = read_statistics(tmp_path)
    assert process.pid == 17
    (device,) = process.devices
    assert device.index == 1
    assert (device.allocated_bytes, device.reserved_bytes) == (512, 2048)
    assert (device.peak_allocated_bytes, device.peak_reserved_bytes) == (1024, 4096)
    assert device.out_of_memory_events == 1
    assert device.phases == {
        "loading": PhasePeak(allocated_bytes=512, reserved_bytes=2048),
        "training": PhasePeak(allocated_bytes=1024, reserved_bytes=4096),
    }
    assert device.timeline[1] == Sample(event=3, update=7, phase="training", allocated_bytes=1024, reserved_bytes=4096)


def test_processes_are_in_order_and_those_without_a_device_left_out(tmp_path):
    for pid in (200, 30):
        write(tmp_path, device_record(), pid=pid)
    write(tmp_path, device_record(events=0), pid=4)
    (tmp_path / "statistics.txt").write_text("no process")
    assert [process.pid for process in read_statistics(tmp_path)] == [30, 200]


def test_process_that_was_killed_while_it_wrote_is_read(tmp_path):
    write(tmp_path, device_record(changes=3))
    assert read_statistics(tmp_path)[0].devices[0].peak_allocated_bytes == 1024


@pytest.mark.parametrize("changes", [{"magic": b"????????"}, {"version": 2}, {"phases": 5}])
def test_other_file_counts_as_absent(tmp_path, changes):
    write(tmp_path, device_record(), **changes)
    assert read_statistics(tmp_path) == []


def test_damaged_files_count_as_absent(tmp_path):
    path = write(tmp_path, device_record())
    whole = path.read_bytes()
    for content in (b"", whole[:20], whole[:-1], whole + b"x"):
        path.write_bytes(content)
        assert read_statistics(tmp_path) == []
    path.unlink()
    write(tmp_path, device_record(count=SAMPLES + 1))
    assert read_statistics(tmp_path) == []
    assert read_statistics(tmp_path / "none") == []


MEASURE = """
import ctypes, os, torch
library = ctypes.CDLL(os.environ["SHOESTRING_SIMULATOR_LIBRARIES"] + "/libshoestring_torch.so")
kept = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (1, 513, 3 << 20, (11 << 20) + 5)]
loaded = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
library.simulator_set_phase(1)
library.simulator_set_update(ctypes.c_int64(3))
peaks = []
for size in (1 << 10, 25 << 20, 700 << 10, 41 << 20):
    torch.cuda.reset_peak_memory_stats()
    block = torch.empty(size, dtype=torch.uint8, device="cuda")
    del block
    peaks.append((torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()))
    torch.cuda.empty_cache()
try:
    torch.empty(1 << 45, device="cuda")
except torch.cuda.OutOfMemoryError:
    pass
del kept[2]
print(*loaded, *map(max, zip(*peaks)), torch.cuda.memory_allocated(), torch.cuda.memory_reserved())
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(
    "settings", ["", "expandable_segments:True", "roundup_power2_divisions:4", "max_split_size_mb:21"]
)
def test_statistics_are_those_of_the_allocator(run_simulated, settings):
    result = run_simulated(MEASURE, status=-9, PYTORCH_CUDA_ALLOC_CONF=settings, PYTHONUNBUFFERED="1")
    loaded, loaded_reserved, peak, peak_reserved, allocated, reserved = map(int, result.lines[0].split())
    (process,) = read_statistics(result.records)
    (device,) = process.devices
    assert (device.allocated_bytes, device.reserved_bytes) == (allocated, reserved)
    assert device.phases["loading"] == PhasePeak(allocated_bytes=loaded, reserved_bytes=loaded_reserved)
    assert device.phases["training"] == PhasePeak(allocated_bytes=peak, reserved_bytes=peak_reserved)
    assert (device.peak_allocated_bytes, device.peak_reserved_bytes) == (peak, peak_reserved)
    assert device.out_of_memory_events == 1
    assert max(sample.allocated_bytes for sample in device.timeline) == peak
    assert {sample.update for sample in device.timeline} == {0, 3}
    assert set(device.phases) <= set(PHASES)


def test_asynchronous_allocator_is_asked_for_its_numbers(run_simulated):
    code = """
    import torch
    kept = torch.zeros(3 << 20, device="cuda")
    print(torch.cuda.memory_allocated())
    """
    result = run_simulated(code, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
    (process,) = read_statistics(result.records)
    assert process.devices[0].allocated_bytes == int(result.lines[0])


def test_process_without_a_device_has_no_statistics(run_simulated):
    result = run_simulated("import torch; print(torch.cuda.is_available())")
    assert result.lines == ["True"]
    assert read_statistics(result.records) == []
