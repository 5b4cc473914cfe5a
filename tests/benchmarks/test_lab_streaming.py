"""The comparison of streamed models with PyTorch's allocator: host memory, limits of errors, and its results."""

import json
from types import SimpleNamespace

import torch
from benchmarks.lab.memory import host
from benchmarks.lab.memory.streaming import RESULTS, configurations, misses

from shoestring.techniques.streaming import host_memory


def test_all_pages_of_streamed_blocks_are_measured(monkeypatch):
    before, size = host.shared_bytes(), 12 * 2**20
    buffers = [host_memory.allocate(size // 3) for _ in range(3)]  # no page of them is resident yet
    streaming = SimpleNamespace(weights=[SimpleNamespace(buffer=buffer) for buffer in buffers])
    monkeypatch.setattr(host, "stream_of", lambda model: streaming)
    assert size <= host.streamed_bytes(torch.nn.Module(), before) <= size * 1.1
    monkeypatch.setattr(host, "LARGEST_BYTES", size - 1)
    assert host.streamed_bytes(torch.nn.Module(), before) is None


def test_errors_above_the_limits_are_named():
    measured = {"allocated": 1000, "reserved": 1000, "host": None, "loading": 1000}
    assert not misses({"measured": measured, "predicted": {"allocated": 981, "reserved": 1049, "host": 7}})
    with_host = {**measured, "host": 100}
    wrong = misses({"measured": with_host, "predicted": {"allocated": 979, "reserved": 1051, "host": 106}})
    assert wrong == ["allocated -2.10%", "reserved +5.10%", "host +6.00%"]
    assert misses({"error": "out of memory"}) == ["out of memory"]


def test_measured_rows_are_within_the_limits():
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
    order = [item.id for item in configurations()]
    assert [row["id"] for row in rows] == [name for name in order if name in {row["id"] for row in rows}]
    assert not [(row["id"], misses(row)) for row in rows if misses(row)]
    assert rows and any(row["measured"]["host"] for row in rows)
