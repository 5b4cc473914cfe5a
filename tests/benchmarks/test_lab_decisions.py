"""What became of a plan's decisions on a simulated GPU, with measurements in its place."""

import pytest
from benchmarks.lab.memory.configurations import of_decisions
from benchmarks.lab.memory.decisions import outcome, runs_of

from shoestring.base.settings import Settings

FIXED = Settings(precision="fp16", packing="no").json()
PLANNED = {
    "fixed": FIXED,
    "plan": {**FIXED, "micro_batch": 6, "packing": "auto"},
    "verdict": "fits",
    "largest": 10,
    "next": [11, 12, 13],
    "first_shares": [1.0, 0.5],
}


def row_with(limits):
    """Return the row of a GPU on which so many samples fit, by the length of the first microbatch."""
    measured = []

    def measure(configuration):
        size, share = configuration.settings.micro_batch, configuration.first_share
        measured.append((size, share))
        return {"fits": size <= limits[share], "allocated": size, "reserved": size, "retries": 0}

    return {**PLANNED, "runs": runs_of(of_decisions()[0], PLANNED, measure)}, measured


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({1.0: 10, 0.5: 10}, "exact"),
        ({1.0: 99, 0.5: 10}, "exact"),  # a shorter first microbatch leaves too little for 11
        ({1.0: 11, 0.5: 11}, "one step off"),
        ({1.0: 12, 0.5: 99}, "two steps off"),
        ({1.0: 99, 0.5: 99}, "more steps off"),
        ({1.0: 10, 0.5: 9}, "the largest that fits ran out of memory"),
        ({1.0: 5, 0.5: 10}, "the plan ran out of memory"),
    ],
)
def test_outcome_is_the_distance_to_what_fits_with_every_first_microbatch(limits, expected):
    row, _ = row_with(limits)
    assert outcome(row) == expected


def test_larger_microbatches_run_until_one_does_not_fit():
    row, measured = row_with({1.0: 99, 0.5: 11})
    assert measured == [(10, 1.0), (10, 0.5), (11, 1.0), (11, 0.5), (12, 1.0), (12, 0.5), (6, 1.0), (6, 0.5)]
    assert [size for size, run in row["runs"].items() if run["fits"]] == ["10", "11", "plan"]
