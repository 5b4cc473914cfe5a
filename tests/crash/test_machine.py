"""Runs disturbed by a state machine of faults until they are finished: no promise fails."""

import os
import sys

import pytest

from tests.crash.counts_of_machine import as_text
from tests.crash.invariants_of_runs import INVARIANTS
from tests.crash.machine import run_machine

SOAK = "SHOESTRING_SOAK" in os.environ
MINUTES = float(os.environ.get("SHOESTRING_SOAK_MINUTES", "20")) if SOAK else 0.2
SEEDS = [int(seed) for seed in os.environ.get("SHOESTRING_SOAK_SEEDS", "1").split(",")] if SOAK else [8429]
"""The short form begins with a session limit, a hang-up, stopped processes and a kill."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_disturbed_runs_end_in_same_bits(tmp_path, capsys, seed):
    report = run_machine(tmp_path, seed=seed, minutes=MINUTES, kind="both", runs=2)
    if SOAK:
        with capsys.disabled():
            sys.stdout.write(f"\n{as_text(report)}\n")
    assert report["failures"] == []
    assert report["finished"].keys() >= {"exact", "library"}  # runs of both kinds
    assert report["comparisons"] >= 2
    assert set(report["checks"]) == {invariant.__name__ for invariant in INVARIANTS}
    assert report["lateness"]["sessions"] > 0
    assert sum(reached for _, reached in report["events"].values()) >= 3
