"""The campaign of faults can be stopped and continued."""

import json

import pytest

from benchmarks import faults


class _Machine:
    """In place of the machine: each sequence ends at once, and that of seed 2 fails."""

    seeds: list[int] = []  # noqa: RUF012

    def __init__(self, folder):
        self.folder = folder

    def run_and_shrink(self, sequence):
        self.seeds.append(sequence.seed)
        outcome = "failed" if sequence.seed == 2 else "same bits"
        return {
            "seed": sequence.seed, "configuration": sequence.configuration, "outcome": outcome, "seconds": 0.1,
            "sessions": [],
        }  # fmt: skip

    def close(self):
        pass


@pytest.fixture
def seeds(monkeypatch):
    monkeypatch.setattr(faults, "Machine", _Machine)
    monkeypatch.setattr(_Machine, "seeds", [])
    return _Machine.seeds


def test_finished_seeds_are_not_repeated(tmp_path, capsys, seeds):
    path = tmp_path / "faults.json"
    faults.campaign(tmp_path, range(2), path, minutes=None)
    faults.campaign(tmp_path, range(4), path, minutes=None)
    assert seeds == [0, 1, 2, 3]
    report = json.loads(path.read_text())
    assert report["outcomes"] == {"same bits": 3, "same bits after an error": 0, "failed": 1}
    assert [row["seed"] for row in report["rows"]] == [0, 1, 2, 3]
    assert report["environment"]["torch"]
    progress = capsys.readouterr().err.splitlines()[-1]
    assert progress.startswith("seed 3: same bits, 0.1 s; 4 of 4 sequences, 1 failed, 0 min left")


def test_no_sequence_begins_after_the_time(tmp_path, seeds):
    faults.campaign(tmp_path, range(4), tmp_path / "faults.json", minutes=0)
    assert seeds == []
