import json

import pytest

from shoestring.recipes.chart.answers import is_right, number, said, steps_said
from shoestring.recipes.chart.drawn import QUESTIONS, TYPES, drawn, image, yearly
from shoestring.recipes.chart.rewards import REWARDS

TABLE = {"columns": ["year", "price"], "rows": [["1999", 2.5], ["2000", 4.0]]}
GOOD = (
    "<think>\n<type>Bar</type>\n<table>"
    + json.dumps(TABLE)
    + "</table>\nIn 1999 the price is 2.5.\nIn 2000 it is 4.0.\n</think>\n<answer>4.1</answer>"
)
KNOWN = {
    "label": "4.0",
    "chart_type": "bar",
    "table": TABLE,
    "reasoning": "in 1999 the price is 2.5\nin 2000 it is 4.0",
}


def rewards(completion, known=KNOWN):
    return {name: reward(completion, known) for name, reward in REWARDS.items()}


def test_a_completion_that_has_everything_gets_all_there_is():
    found = rewards(GOOD)
    assert found.pop("process") == pytest.approx(2.0)
    assert found == {"form": 2.0, "tags": 2.0, "accuracy": 1.0, "length": 1.5, "chart_type": 1.0, "table": 1.75}


def test_one_that_says_nothing_gets_nothing():
    assert set(rewards("").values()) == {0.0}


@pytest.mark.parametrize(
    ("change", "name", "expected"),
    [
        (lambda text: "well, " + text, "form", 0.0),
        (lambda text: text.replace("<answer>", "<answer><answer>"), "tags", 0.75),
        (lambda text: text.split("<answer>")[1] + text.split("<answer>")[0], "tags", 0.75),
        (lambda text: text.replace(">4.1<", ">4.21<"), "accuracy", 0.0),
        (lambda text: text.replace("In 2000 it is 4.0.\n", ""), "length", 1.25),
        (lambda text: text.replace("Bar", "pie"), "chart_type", 0.0),
        (lambda text: text.replace('"rows"', '"cells"'), "table", 0.5 + 0.5),
        (lambda text: text.replace("[2000", "[2000").replace("4.0]", "4.5]"), "table", 0.5 + 0.5 + 0.375 + 0.25),
        (lambda text: text.replace("{", ""), "table", 0.0),
    ],
)
def test_what_is_wrong_costs_its_own_reward(change, name, expected):
    assert REWARDS[name](change(GOOD), KNOWN) == pytest.approx(expected)


def test_a_table_of_the_right_cells_over_and_over_earns_no_more_than_its_maximum():
    padded = {**TABLE, "rows": TABLE["rows"] * 50}
    assert REWARDS["table"](GOOD.replace(json.dumps(TABLE), json.dumps(padded)), KNOWN) < 1.3


def test_what_is_not_known_counts_for_nothing():
    found = rewards(GOOD, {"label": "4.0"})
    assert [found[name] for name in ("chart_type", "table", "process")] == [None, None, None]


@pytest.mark.parametrize(
    ("answer", "label", "right"),
    [
        ("105", "100", True),
        ("105.1", "100", False),
        ("-95", "-100", True),
        ("-80", "-100", False),  # by the label's sign, not its size, every answer above it would pass
        ("5", "-100", False),
        ("0", "0", True),
        ("0.01", "0", False),
        ("$1,050", "1000", True),
        ("12%", "12", True),
        ("New  york", "new York", True),
        ("1999", "1998 and 1999", False),
        ("about 4", "4", False),
    ],
)
def test_relaxed_accuracy(answer, label, right):
    assert is_right(answer, label) is right


def test_parts_of_a_completion_are_found():
    assert said(GOOD, "answer") == "4.1" and said("<answer>4", "answer") is None
    assert steps_said(GOOD) == ["In 1999 the price is 2.5.", "In 2000 it is 4.0."]
    assert number("1e400") is None and number("-1,000.5") == -1000.5


def test_charts_are_of_real_prices_and_their_answers_follow_from_their_tables():
    assert yearly()["AAPL"][2000] == pytest.approx(0.69, abs=0.05)  # adjusted closing prices, mean of the months
    charts = [drawn(number) for number in range(200)]
    assert {chart.chart_type for chart in charts} == set(TYPES)
    assert len({chart.query for chart in charts}) > len(QUESTIONS)
    for chart in charts:
        values = dict(chart.rows)
        if "highest" in chart.query:
            assert values[chart.label] == max(values.values())
        elif "change" in chart.query:
            assert float(chart.label) == pytest.approx(chart.rows[-1][1] - chart.rows[0][1], abs=0.051)
    assert drawn(7) == drawn(7)


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_is_drawn(kind):
    chart = next(chart for chart in map(drawn, range(100)) if chart.chart_type == kind)
    found = image(chart, (224, 112))
    assert (found.size, found.mode) == ((224, 112), "RGB")
    assert len(found.getcolors(10**6)) > 20
