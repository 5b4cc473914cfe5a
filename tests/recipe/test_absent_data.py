"""Plans of data that are not here: the number of rows, their lengths, and what is refused."""

import json

import pytest

from shoestring.base.errors import UsageError
from shoestring.recipe.absent_data import Lengths
from shoestring.recipe.finding import choose, find, load
from shoestring.recipe.installed import built_in_names

BUILT_IN = built_in_names()


def write_lengths(tmp_path, **content):
    path = tmp_path / "lengths.json"
    path.write_text(json.dumps({"unit": "tokens", "counts": {"20": 30, "40": 10}, **content}))
    return path


@pytest.mark.parametrize("name", BUILT_IN)
def test_rows_of_every_recipe_are_divided_among_its_parts(name):
    samples = choose(name, {"rows": 1000})[0].absent_samples()
    per_row = find(name).parts.data.samples_per_row
    assert sum(samples.values()) == pytest.approx(1000 * per_row)
    assert samples["train"] > 0.6 * 1000 * per_row


def test_legal_counts_judgments_by_their_sentences():
    assert choose("legal", {"rows": 10, "fold": "all"})[0].absent_samples() == {"train": 2250}
    hierarchical = choose("legal", {"rows": 10, "architecture": "hier_bilstm_crf"})[0]
    assert hierarchical.absent_samples() == {"train": 8, "validation": 1, "test": 1}


def test_a_subset_is_part_of_the_rows():
    assert choose("vqa", {"rows": 1000, "subset": 0.5})[0].absent_samples()["train"] == 400
    assert choose("vqa", {"rows": 1000, "subset": 800})[0].absent_samples()["train"] == 800
    with pytest.raises(UsageError, match="subset=801 of 800 samples is not possible"):
        choose("vqa", {"rows": 1000, "subset": 801})[0].absent_samples()


def test_a_file_tells_how_many_samples_each_part_has(tmp_path):
    path = write_lengths(tmp_path, rows=5, samples={"train": 40, "test": 10})
    assert choose("legal", {"lengths": path})[0].absent_samples() == {"train": 40, "test": 10}
    assert choose("legal", {"lengths": path, "rows": 50})[0].absent_samples() == {"train": 400, "test": 100}


def test_a_file_of_counts_alone_is_of_the_training_part(tmp_path):
    samples = choose("vqa", {"lengths": write_lengths(tmp_path)})[0].absent_samples()
    assert samples == {"train": 40, "validation": 5, "test": 5}


def test_quantiles_have_the_distribution_of_the_lengths(tmp_path):
    lengths = Lengths.read(write_lengths(tmp_path))
    assert lengths.quantiles() == (20.0,) * 30 + (40.0,) * 10
    assert lengths.quantiles(4) == (20.0, 20.0, 20.0, 40.0)
    assert Lengths.count([20.0, 40, 20], unit="tokens").counts == {20: 2, 40: 1}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"counts": {}}, "counts has no samples"),
        ({"counts": {"20": 0}}, "counts has no samples"),
        ({"counts": {"-3": 1}}, "counts has '-3': 1"),
        ({"counts": {"0": 5}}, "counts has '0': 5"),
        ({"counts": {"20": 1.5}}, "counts has '20': 1.5"),
        ({"counts": [20]}, "counts is list"),
        ({"unit": 3}, "unit is not a text"),
        ({"rows": -1}, "rows: '-1' is not an integer"),
        ({"samples": {"train": "x"}}, "samples is not an object"),
        ({"samples": {"validation": 3}}, "samples are not those of train"),
        ({"samples": {"train": 3, "val": 3}}, "samples are not those of train"),
        ({"counts": {"9" * 5000: 1}}, "counts has '9999"),
        ({"tokenizer": 3}, "tokenizer is not a text"),
    ],
)
def test_a_file_that_has_no_lengths_is_refused(tmp_path, content, problem):
    with pytest.raises(UsageError, match="not a file of lengths") as error:
        Lengths.read(write_lengths(tmp_path, **content))
    assert any(text.startswith(problem) for text in error.value.problems)


@pytest.mark.parametrize("text", ["", "[1]", "nothing", '{"unit": "tokens"}'])
def test_a_file_of_something_else_is_refused(tmp_path, text):
    (tmp_path / "file.json").write_text(text)
    with pytest.raises(UsageError, match=r"file\.json: (cannot be read|not a file of lengths)"):
        Lengths.read(tmp_path / "file.json")


def test_lengths_in_another_unit_are_refused(tmp_path):
    path = write_lengths(tmp_path, unit="sentences")
    with pytest.raises(UsageError, match="has lengths in sentences, but those of legal are in tokens"):
        _ = choose("legal", {"lengths": path})[0].lengths


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"rows": 0}, "rows=0: must be at least 2"),
        ({"rows": 10, "row_tokens": 0}, "row_tokens=0: must be at least 1"),
        ({"rows": 10, "data": "chats.jsonl"}, "rows: for data that are not here, but data="),
        ({"row_tokens": 10, "lengths": "file"}, "row_tokens and lengths are both the lengths of samples"),
    ],
)
@pytest.mark.parametrize("name", ["legal", "finetune"])
def test_options_that_contradict_each_other_are_refused(name, values, problem):
    with pytest.raises(UsageError) as error:
        choose(name, values)
    assert [text for text in error.value.problems if text.startswith(problem)]


def test_a_run_needs_data():
    with pytest.raises(UsageError, match="rows stand in plans for data that are not here"):
        choose("legal", {"rows": 10})[0].require_real_data()
    choose("legal", {})[0].require_real_data()


def test_an_attribute_of_a_recipe_is_no_option_of_absent_data():
    class Mine:
        rows = 5
        lengths = (1, 2)

        def model(self): ...
        def batch(self, size): ...
        def loss(self, model, batch): ...

    assert load(Mine(), {}).absent_data is None
    assert load(Mine(), {"rows": 7}).recipe.rows == 5
