"""A seed stands for one sequence of faults, and a failing sequence is made as small as possible."""

import os
import random

import pytest

from tests.crash.counts_of_machine import summary
from tests.crash.faults_of_sessions import AREA_OF, FAULTS
from tests.crash.foreign_files import HIDDEN, VISIBLE, changes, fact, outside_of_runs, plant
from tests.crash.machine import sequence_of
from tests.crash.sequences import Faults, FaultSequence, parse, shrink


def test_seed_repeats_its_sequence():
    assert [sequence_of(seed) for seed in range(20)] == [sequence_of(seed) for seed in range(20)]
    assert parse(sequence_of(5).json()) == sequence_of(5)


def test_sequences_have_every_fault_and_one_of_an_area_in_a_session():
    sessions = [session for seed in range(300) for session in sequence_of(seed).sessions]
    assert {name for session in sessions for name in session.names} == set(FAULTS)
    for session in sessions:
        areas = [AREA_OF[name] for name in session.names]
        assert areas and len(areas) == len(set(areas))


def test_details_of_a_fault_do_not_depend_on_other_faults():
    sequence = sequence_of(3)
    details = [
        sequence.generator(session.number, name).random() for session in sequence.sessions for name in session.names
    ]
    last = FaultSequence(seed=3, configuration=sequence.configuration, sessions=sequence.sessions[-1:])
    (number, names) = last.sessions[0].number, last.sessions[0].names
    assert [last.generator(number, name).random() for name in names] == details[-len(names) :]


def test_shrinking_leaves_the_faults_that_fail_together():
    sessions = (("a", "b"), ("c",), ("d", "e", "f"), ("g",))
    sequence = FaultSequence(
        seed=1, configuration="exact", sessions=tuple(Faults(number=i, names=names) for i, names in enumerate(sessions))
    )
    tried = []

    def fails(candidate):
        tried.append(candidate)
        names = {name for session in candidate.sessions for name in session.names}
        return {"b", "e"} <= names

    smallest = shrink(sequence, fails, attempts=100)
    assert [(session.number, session.names) for session in smallest.sessions] == [(0, ("b",)), (2, ("e",))]
    tried.clear()
    assert shrink(sequence, fails, attempts=3) != smallest
    assert len(tried) == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(path.read_bytes() + b"x"),
        lambda path: path.chmod(0o640),
        lambda path: os.utime(path, (1, 1)),
        lambda path: path.unlink(),
    ],
    ids=["content", "mode", "time", "removed"],
)
def test_changes_of_foreign_files_are_noticed(tmp_path, change):
    outside, folder = outside_of_runs(tmp_path), tmp_path / "run"
    folder.mkdir()
    paths = plant(folder, outside, random.Random(1), names=HIDDEN + VISIBLE)
    planted = {str(path): fact(path) for path in paths}
    assert any(path.is_symlink() for path in paths)
    assert list(changes(planted)) == []
    changed = next(path for path in paths if path.is_file() and not path.is_symlink())
    change(changed)
    assert any(repr(str(changed)) in text for text in changes(planted))


def test_summary_counts_outcomes_and_faults():
    session = {"faults": ["SIGKILL of child"], "reached": ["SIGKILL of child"], "status": 1, "lost": 3}
    rows = [
        {"seed": 0, "configuration": "exact", "outcome": "same bits", "seconds": 1.0, "sessions": [session]},
        {"seed": 1, "configuration": "noisy", "outcome": "failed", "seconds": 2.5, "sessions": [session, session]},
    ]
    report = summary(rows)
    assert report["outcomes"] == {"same bits": 1, "same bits after an error": 0, "failed": 1}
    assert report["faults"]["SIGKILL of child"] == [3, 3]
    assert report["most updates lost"] == 3 and report["seconds"] == 3.5
    assert [failure["seed"] for failure in report["failures"]] == [1]
