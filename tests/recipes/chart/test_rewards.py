import json

import pytest

from shoestring.recipe.finding import choose
from shoestring_recipes.chart.answers import is_correct, parse_number, parse_steps, parse_tag
from shoestring_recipes.chart.rewards import REWARDS
from shoestring_recipes.chart.synthetic import QUESTIONS, TYPES, draw_chart, load_yearly_means, make_chart

TABLE = {"columns": ["year", "price"], "rows": [["1999", 2.5], ["2000", 4.0]]}
GOOD = (
    "<think>\n<type>Bar</type>\n<table>"
    + json.dumps(TABLE)
    + "</table>\nIn 1999 the price is 2.5.\nIn 2000 it is 4.0.\n</think>\n<answer>4.1</answer>"
)
ANNOTATIONS = {
    "label": "4.0",
    "chart_type": "bar",
    "table": TABLE,
    "reasoning": "in 1999 the price is 2.5\nin 2000 it is 4.0",
}


def compute_rewards(completion, annotations=ANNOTATIONS):
    return {name: reward(completion, annotations) for name, reward in REWARDS.items()}


def test_complete_answer_earns_every_reward():
    rewards = compute_rewards(GOOD)
    assert rewards.pop("process") == pytest.approx(2.0)
    assert rewards == {"form": 2.0, "tags": 2.0, "accuracy": 1.0, "length": 1.5, "chart_type": 1.0, "table": 1.75}


def test_empty_completion_earns_nothing():
    assert set(compute_rewards("").values()) == {0.0}


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
def test_an_error_lowers_its_own_reward(change, name, expected):
    assert REWARDS[name](change(GOOD), ANNOTATIONS) == pytest.approx(expected)


def test_repeated_cells_lower_the_reward_of_a_table():
    padded = {**TABLE, "rows": TABLE["rows"] * 50}
    assert REWARDS["table"](GOOD.replace(json.dumps(TABLE), json.dumps(padded)), ANNOTATIONS) < 1.3


def test_missing_annotations_give_no_reward():
    rewards = compute_rewards(GOOD, {"label": "4.0"})
    assert [rewards[name] for name in ("chart_type", "table", "process")] == [None, None, None]


@pytest.mark.parametrize(
    ("answer", "label", "correct"),
    [
        ("105", "100", True),
        ("105.1", "100", False),
        ("-95", "-100", True),
        ("-80", "-100", False),  # relative to the signed label, every larger answer would be correct
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
def test_relaxed_accuracy(answer, label, correct):
    assert is_correct(answer, label) is correct


def test_parts_of_a_completion_are_parsed():
    assert parse_tag(GOOD, "answer") == "4.1" and parse_tag("<answer>4", "answer") is None
    assert parse_steps(GOOD) == ["In 1999 the price is 2.5.", "In 2000 it is 4.0."]
    assert parse_number("1e400") is None and parse_number("-1,000.5") == -1000.5


def test_answers_of_synthetic_charts_follow_from_their_tables():
    assert load_yearly_means()["AAPL"][2000] == pytest.approx(
        0.69, abs=0.05
    )  # adjusted closing prices, mean of the months
    charts = [make_chart(number) for number in range(200)]
    assert {chart.chart_type for chart in charts} == set(TYPES)
    assert len({chart.query for chart in charts}) > len(QUESTIONS)
    for chart in charts:
        values = dict(chart.rows)
        if "highest" in chart.query:
            assert values[chart.label] == max(values.values())
        elif "change" in chart.query:
            assert float(chart.label) == pytest.approx(chart.rows[-1][1] - chart.rows[0][1], abs=0.051)
    assert make_chart(7) == make_chart(7)


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_is_drawn(kind):
    chart = next(chart for chart in map(make_chart, range(100)) if chart.chart_type == kind)
    image = draw_chart(chart, (224, 112))
    assert (image.size, image.mode) == ((224, 112), "RGB")
    assert len(image.getcolors(10**6)) > 20


def test_random_weights_learn_digits_in_a_short_run():
    tiny, full = (choose("chart", options)[0].recipe for options in ({"size": "tiny"}, {}))
    (reward,) = tiny.rewards().values()
    assert (reward("a1b2", {}), reward("", {}), tiny.best) == (0.5, 0.0, ("digits", "max"))
    assert (full.rewards(), full.best) == (REWARDS, ("relaxed_accuracy", "max"))
    assert not tiny.is_pretrained
