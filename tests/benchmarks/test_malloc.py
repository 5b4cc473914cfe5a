"""The calculations of the comparison of allocator policies, and a short comparison."""

import pytest
from benchmarks.engine import malloc


def block(seconds, cpu_seconds):
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "system_seconds": 0.1 * cpu_seconds,
        "faults": 10.0,
        "peak_bytes": 5,
        "resident_bytes": 4,
        "bits": "a",
    }


def test_ratios_compare_blocks_of_the_same_round():
    default = [[block(1.0, 2.0), block(3.0, 2.0), block(2.0, 2.0)]]
    kept = [[block(0.9, 1.6), block(2.7, 1.6), block(2.0, 1.6)]]
    row = malloc._row("kept", kept, default)
    assert row.ratio == pytest.approx(0.9) and row.ratios_of_sets == pytest.approx([0.9])
    assert (row.cpu_ratio, row.system_share) == pytest.approx((0.8, 0.1))
    assert malloc._row("default", default, default).ratio == 1.0


@pytest.mark.slow
def test_policies_end_in_the_same_bits():
    rows = malloc.compare("temporal size=tiny", sets=1, rounds=1, seconds=0.1)
    assert [row.policy for row in rows] == [*malloc.POLICIES]
    assert len({row.bits for row in rows}) == 1
    assert rows[0].faults > rows[-1].faults
