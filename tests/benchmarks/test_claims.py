import math

import pytest
from benchmarks.plan.claims import ONE, ROWS, TWO, Row, costs

from shoestring.config import parse_pairs
from shoestring.hardware.targets import find
from shoestring.recipe.finding import choose


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.recipe}: {row.setting}")
def test_every_command_is_understood(row: Row) -> None:
    for options in filter(None, (row.options, row.both)):
        choose(row.recipe, parse_pairs(options.split()))
    assert row.command.startswith(f"shoestring plan {row.recipe} --on {ONE} --on {TWO}")
    assert row.command.split()[8::2] == row.options.split()


def test_the_guides_data_make_as_many_updates_as_is_said() -> None:
    """Samples, and how many of them are in an update; the last one of an epoch may be smaller."""
    sizes = {"vqa": (9_900, 9), "legal": (1_122_507, 16), "chart": (10_000, 2), "cloud": (122_218, 4)}
    for row in ROWS:
        if row.updates is not None:
            samples, each = sizes[row.recipe]
            assert row.updates == math.ceil(samples / each)


def test_an_hour_an_epoch_is_cut_into_sessions_and_weeks_by_hand() -> None:
    row = Row(recipe="mine", setting="any", updates=3600, epochs=35)
    update, epoch, total, sessions, weeks = costs(row, find(ONE), (1.0, 0.5, 2.0), 0)
    assert (update, epoch, total) == ("1 (0.5 to 2)", "1 h 00 min", "35 h 00 min")
    # 35 h and 2% for saving are 35.7: two of 12 h and what is left of the week's 30, then the rest.
    assert (sessions, weeks) == ("4", "1.2")


def test_nothing_is_said_of_epochs_whose_length_nobody_knows() -> None:
    assert costs(Row(recipe="mine", setting="any"), find(ONE), (1.0, 0.5, 2.0), 0)[1:] == ["-"] * 4
