"""`rewards=guide`: what the guide's code earns, mistakes included; `benchmarks/chart/rewards.py` runs that code."""

import json

import pytest

from shoestring.base.errors import UsageError
from shoestring_recipes.chart import Chart, Options
from shoestring_recipes.chart.guide_rewards import REWARDS
from shoestring_recipes.chart.presentation import GUIDE_INSTRUCTION, INSTRUCTION
from shoestring_recipes.chart.rewards import REWARDS as OURS

TABLE = {"columns": ["Year", "Value"], "rows": [["2020", "50"], ["2021", "60"]]}
STEPS = "<step-1>: The value of 2020 is 50 and that of 2021 is 60\n<step-2>: 60 - 50 = 10"
GOOD = (
    "<think>\n<type>bar</type>\n<table>"
    + json.dumps({**TABLE, "rows": [[2020, 50], [2021, 60]]})
    + f"</table>\n{STEPS}\n</think>\n<answer>10</answer>"
)
ANNOTATIONS = {"label": "10", "chart_type": "Bar", "table": TABLE, "reasoning": STEPS}


def compute(name, completion, **annotations):
    return REWARDS[name](completion, {**ANNOTATIONS, **annotations})


def with_table(value):
    return f"<table>{value}</table>"


def test_complete_answer_earns_every_reward():
    rewards = {name: compute(name, GOOD) for name in REWARDS}
    assert rewards.pop("process") == pytest.approx(1.0)  # ours adds 1
    # Two rows of two cells each: 0.5 for each cell divided by the rows alone.
    assert rewards == {"form": 2, "tags": 2, "accuracy": 1, "length": 1.75, "chart_type": 1, "table": 0.75 + 0.5 + 1}
    assert list(rewards) == [name for name in OURS if name != "process"]


@pytest.mark.parametrize(
    ("change", "name", "expected"),
    [
        (lambda text: text.replace("</type>\n", "</type> "), "form", 0),
        (lambda text: f"{text}\nthat is all", "form", 2),
        (lambda text: f"{text} that is all", "form", 0),
        (lambda text: text.replace("</type>\n", "</type>"), "tags", 0),  # all or nothing
        (lambda text: text.replace("<answer>", "<answer><answer>"), "tags", 0),
        (lambda text: text.replace("<step-", "step "), "length", 1.25),
        (lambda text: text.replace(STEPS, STEPS * 3), "length", 1.5),  # too long, and seven marks at most count
        (lambda text: text.replace(STEPS, "x" * 140), "length", 1.25),
        (lambda text: text.replace("bar", "pie"), "chart_type", 0),
        (lambda text: text.replace(STEPS, ""), "process", 0),
    ],
)
def test_changes_of_the_format(change, name, expected):
    assert compute(name, change(GOOD)) == expected


@pytest.mark.parametrize(
    ("answer", "label", "expected"),
    [
        ("10.4", "10", 1),
        ("10.6", "10", 0),
        ("500", "-10", 1),  # the divisor has the sign of the label
        ("0", "0", 0),  # as large as what is added to the label
        ("10.", "10", 1),
        ("$10", "10", 0),
        ("YES..", "yes", 1),
        ("", "yes", 0),
        ("ten", "10", 0),
    ],
)
def test_accuracy(answer, label, expected):
    assert compute("accuracy", f"<think><answer>{answer}</answer>", label=label) == expected
    assert compute("accuracy", f"<answer>{answer}</answer>", label=label) == 0


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ('```json\n{"columns": ["value", "YEAR"], "rows": []}\n```', 0.5 + 0.5 + 0.25),
        ('Here: ```json\n{"rows": [[2021, 60], [2020, 50]]}\n``` as asked', 0.5 + 1.0),
        ('{"columns": ["Year"],\n "rows": [[2020]]}', 0.75 + 0.5),  # sorted, its column stands beside "Value"
        ('["columns", "rows"]', 0.75),
        ("5", 0.5),
        ("none", 0.0),
        ('{"columns": "YV", "rows": {}}', 0.75),
        ('{"columns": [null, "Year"], "rows": [["2020", "50"], [null]]}', 0.75 + 0.5),
    ],
)
def test_table(block, expected):
    assert compute("table", with_table(block)) == pytest.approx(expected)


def test_missing_annotations_give_no_reward():
    without = dict.fromkeys(("chart_type", "table", "reasoning"))
    assert [compute(name, GOOD, **without) for name in ("chart_type", "table", "process")] == [None, None, None]


def test_annotated_tables_are_not_changed():
    table = {"columns": ["b", "A"], "rows": [["2"], ["1"]]}
    assert compute("table", GOOD, table=table) > 0
    assert table == {"columns": ["b", "A"], "rows": [["2"], ["1"]]}


def test_the_option_has_its_own_prompt(tmp_path):
    recipes = [Chart(Options(size="tiny", rewards=name)) for name in ("published", "guide")]
    assert [recipe.rewards() for recipe in recipes] == [OURS, REWARDS]
    prompts = [recipe.data()["train"][0]["prompt"][0]["content"] for recipe in recipes]
    assert prompts == [INSTRUCTION, GUIDE_INSTRUCTION]
    example = GUIDE_INSTRUCTION[GUIDE_INSTRUCTION.index("<think>") :]
    assert (compute("form", example), compute("tags", example)) == (2, 2)


def test_a_prompt_of_the_user_is_stored_with_the_run(tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text("  Größe?\n")
    options = Options(size="tiny", system_prompt=file)
    recipe = Chart(options)
    assert recipe.data()["train"][0]["prompt"][0]["content"] == "  Größe?\n"
    recipe.save_preprocessing(tmp_path)
    file.unlink()
    restored = Chart(options)
    restored.load_preprocessing(tmp_path)
    (question, *_) = restored.inputs([{"image": tmp_path / "a.png", "query": "?"}])
    assert restored._presentation().instruction == "  Größe?\n" and question.error is None
    (tmp_path / "system_prompt.txt").unlink()
    with pytest.raises(UsageError, match=r"system_prompt\.txt cannot be read"):
        Chart(options).load_preprocessing(tmp_path)


@pytest.mark.parametrize(
    ("content", "problem"), [(b"", "is empty"), (b" \n", "is empty"), (b"\xff", "cannot be read"), (b"a\0", "NUL")]
)
def test_a_prompt_that_is_no_text_is_refused(tmp_path, content, problem):
    (tmp_path / "prompt.txt").write_bytes(content)
    with pytest.raises(UsageError, match=problem):
        Chart(Options(size="tiny", system_prompt=tmp_path / "prompt.txt")).data()
