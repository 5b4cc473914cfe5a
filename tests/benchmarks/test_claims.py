import math

import pytest
from benchmarks.plan.claims import ONE_GPU, ROWS, TWO_GPUS, Row, costs

from shoestring.config import parse_pairs
from shoestring.hardware.targets import find
from shoestring.recipe.finding import choose


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.recipe}: {row.setting}")
def test_every_command_is_valid(row: Row) -> None:
    for options in filter(None, (row.options, row.both)):
        choose(row.recipe, parse_pairs(options.split()))
    assert row.command.startswith(f"shoestring plan {row.recipe} --on {ONE_GPU} --on {TWO_GPUS}")
    assert row.command.split()[8::2] == row.options.split()


def test_number_of_updates_matches_the_guides_data() -> None:
    """Compare with the number of samples and the samples per update; the last update of an epoch may be smaller."""
    sizes = {"vqa": (9_900, 9), "legal": (1_122_507, 16), "chart": (10_000, 2), "cloud": (122_218, 4)}
    for row in ROWS:
        if row.updates is not None:
            samples, batch_size = sizes[row.recipe]
            assert row.updates == math.ceil(samples / batch_size)


def test_costs_divide_epochs_into_sessions_and_weeks() -> None:
    row = Row(recipe="mine", setting="any", updates=3600, epochs=35)
    update, epoch, total, sessions, weeks = costs(row, find(ONE_GPU), (1.0, 0.5, 2.0), 0)
    assert (update, epoch, total) == ("1 (0.5 to 2)", "1 h 00 min", "35 h 00 min")
    # 35 h and 2% for saving are 35.7 h: two sessions of 12 h, the remainder of the week's 30 h, and a last session.
    assert (sessions, weeks) == ("4", "1.2")


def test_costs_of_unknown_epochs_are_dashes() -> None:
    assert costs(Row(recipe="mine", setting="any"), find(ONE_GPU), (1.0, 0.5, 2.0), 0)[1:] == ["-"] * 4
