"""The out-of-memory benchmark, as a dry run on the CPU."""

import json

import pytest
import torch
from benchmarks.gpu import out_of_memory

from shoestring.base.units import GIB


def test_missing_gpu_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert out_of_memory.main([]) == 2
    assert "no NVIDIA GPU" in capsys.readouterr().err


@pytest.mark.slow
def test_dry_run_covers_every_phase(tmp_path, capsys):
    out = tmp_path / "deep" / "out.json"
    assert out_of_memory.main(["--dry-run", "--json", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [(row["phase"], row["tried"]) for row in rows if row["precision"] == "fp16"] == [
        ("forward", [64, 32]),
        ("backward", [64, 32]),
        ("optimizer", [64]),
        ("evaluation", [64, 32]),
    ]
    assert capsys.readouterr().out.count("good") == 8
    # A loss scale has two more values.
    assert len({(row["precision"], row["before_bytes"]) for row in rows}) == 2, "no trial leaves tensors behind"


@pytest.mark.parametrize(
    "change", [{"same_bits": False}, {"after_bytes": [5, 6]}, {"failures": []}, {"after_bytes": []}]
)
def test_leaked_memory_and_other_bits_are_failures(change):
    row = {"phase": "forward", "precision": "fp32", "failures": ["x"], "before_bytes": 5, "after_bytes": [5, 5]}
    assert out_of_memory.Row(**row, same_bits=True).good
    assert not out_of_memory.Row(**{**row, "same_bits": True, **change}).good


def test_limit_is_the_memory_of_a_t4():
    assert 14.55 < out_of_memory.LIMIT_BYTES / GIB < 14.57
