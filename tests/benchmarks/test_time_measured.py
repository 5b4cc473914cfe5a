"""The comparison of predictions on a CPU, with made-up numbers."""

import json

import pytest
from benchmarks.time import measured

from shoestring.planning.estimate.time import Seconds


def row(updates: tuple[float, ...], catalogue: float, from_file: float) -> measured.Row:
    def prediction(value: float) -> Seconds:
        return Seconds(parts={"forward": value}, low=0.5 * value, high=2 * value, source="")

    return measured.Row(
        case=measured.CASES[0], catalogue=prediction(catalogue), from_file=prediction(from_file), updates=updates
    )


def test_table_compares_both_predictions_with_the_median_update() -> None:
    rows = [row((9.0, 1.0, 1.1), 0.55, 1.21), row((1.0,), 3.0, 2.5)]
    first, second, errors = measured.table(rows).splitlines()[1:]
    assert first.split()[-6:] == ["1.100", "1.210", "+10%", "0.550", "-50%", "yes"]
    assert second.split()[-6:] == ["1.000", "2.500", "+150%", "3.000", "+200%", "no"]
    assert errors.endswith("from file 80% and 150%, catalogue 125% and 200%")
    assert json.loads(json.dumps(rows[0].json()))["measured"] == 1.1


@pytest.mark.parametrize("case", measured.CASES, ids=lambda case: case.model)
def test_cases_are_different_models_with_settings(case) -> None:
    assert case.settings.micro_batch and case.settings.precision == "fp32"
    assert len({case.model for case in measured.CASES}) == 5
