"""Files of the laboratory's results, to which later runs add their rows."""

import json

from benchmarks.lab.memory.configurations import configurations
from benchmarks.lab.memory.predictions import write
from benchmarks.lab.memory.scores import Score
from benchmarks.lab.out_of_memory import Results


def test_chosen_configurations_replace_their_rows_and_no_others(tmp_path):
    first, second, third = configurations()[:3]
    file = tmp_path / "rows.json"

    def rows_of(scores, *, keeps_others):
        write(scores, file, keeps_others=keeps_others)
        return [(row["id"], row["skipped"]) for row in json.loads(file.read_text())["rows"]]

    def score(item, reason):
        return Score(id=item.id, kind=item.kind, skipped=reason)

    rows_of([score(third, "old"), score(first, "old")], keeps_others=False)
    rows = rows_of([score(second, "new"), score(third, "new")], keeps_others=True)
    assert rows == [(first.id, "old"), (second.id, "new"), (third.id, "new")]
    assert rows_of([score(second, "new")], keeps_others=False) == [(second.id, "new")]


def test_scenarios_are_added_to_those_of_a_file():
    first, both = Results(), Results()
    first.begin("session", 10, 1)
    first.add(1, 1, "same bits", ["update.py:1", "update.py:2"], "")
    both.add_earlier(json.loads(json.dumps(first.content())))
    both.begin("two GPUs", None, 32)
    both.add(1, 1, "a hang", ["update.py:2"], "")
    content = both.content()
    assert [(row["scenario"], row["every"], row["places"]) for row in content["scenarios"]] == [
        ("session", 1, 2),
        ("two GPUs", 32, 1),
    ]
    assert content["failures_by_place"] == {"update.py:1": 1, "update.py:2": 2}
    assert content["outcomes"] == {"same bits": 1, "defect": 1} and content["cases"] == 2
    assert [defect["scenario"] for defect in content["defects"]] == ["two GPUs"]
