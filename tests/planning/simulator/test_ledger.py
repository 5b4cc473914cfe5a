"""The shared file of the simulated GPUs' memory, as `native/cuda/ledger.h` lays it out."""

import struct

import pytest

from shoestring.planning.simulator.ledger import device_arenas, peak_bytes, visible_gpus


def write_ledger(folder, magic=b"SHOELEDG", version=2, slot_bytes=304):
    header = struct.pack("<8s4IQ4Q16Q", magic, version, 3, 2, slot_bytes, 1000, *[0] * 4, 700, 300, *[0] * 14)
    used = struct.pack("<iI3Q16Q16Q16b", 17, 0, 5, 4096, 8192, *[0] * 32, 1, 0, *[-1] * 14)
    unused = struct.pack("<iI3Q16Q16Q16b", 0, 0, 0, 0, 0, *[0] * 32, *[-1] * 16)
    (folder / "ledger").write_bytes(header + used + 2 * unused)


def test_arenas_and_peaks_are_read(tmp_path):
    write_ledger(tmp_path)
    assert device_arenas(tmp_path) == {17: (4096, 8192)}
    assert peak_bytes(tmp_path) == [700, 300]
    assert visible_gpus(tmp_path) == {17: (1, 0)}


@pytest.mark.parametrize("changes", [{"magic": b"????????"}, {"version": 1}, {"slot_bytes": 12}])
def test_other_file_is_no_ledger(tmp_path, changes):
    write_ledger(tmp_path, **changes)
    assert device_arenas(tmp_path) == {}
    assert peak_bytes(tmp_path) == []


def test_missing_and_cut_files_are_empty(tmp_path):
    assert device_arenas(tmp_path) == {}
    write_ledger(tmp_path)
    content = (tmp_path / "ledger").read_bytes()
    (tmp_path / "ledger").write_bytes(content[:300])
    assert device_arenas(tmp_path) == {}
    assert peak_bytes(tmp_path) == [700, 300]
