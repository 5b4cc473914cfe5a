"""Runs disturbed by sequences of faults until they are finished: no promise fails."""

import pytest

from tests.crash.machine import Machine, sequence_of

SEEDS = (0, 1, 2, 3)
"""A sequence of each configuration. `make soak` runs 2,000 others (`benchmarks/faults.py`)."""


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    machine = Machine(tmp_path_factory.mktemp("machine"))
    yield machine
    machine.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_disturbed_run_ends_in_same_bits(machine, seed):
    result = machine.run(sequence_of(seed))
    assert result["outcome"] in ("same bits", "same bits after an error"), result
    assert any(session["reached"] for session in result["sessions"])
