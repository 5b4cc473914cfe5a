"""Prompts that are longer than the plan counts are refused, or skipped and counted."""

import json

import pytest
from PIL import Image

from shoestring.base.errors import DataError
from shoestring_recipes.chart import Chart, Options
from shoestring_recipes.chart.export import encode
from shoestring_recipes.chart.lengths import prompt_lengths


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "png").mkdir()
    Image.new("RGB", (30, 20)).save(tmp_path / "png" / "a.png")
    queries = ["how many?"] * 18 + ["how many of the bars are higher than the mean of all the bars?", "?"]
    rows = [{"imgname": "a.png", "query": query, "label": 3} for query in queries]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    return tmp_path


def build(folder, **options):
    return Chart(Options(size="tiny", data=folder, **options))


def test_lengths_are_those_of_the_encoded_prompts(folder):
    recipe = build(folder)
    for charts in recipe.data().values():
        expected = [encode(recipe._processor(), [charts[index]])["input_ids"].shape[1] for index in range(len(charts))]
        assert prompt_lengths(charts, recipe._load_tokenizer(), 32) == expected


def test_long_prompts_are_refused_or_skipped_in_every_part(folder):
    recipe = build(folder)
    lengths = {name: prompt_lengths(charts, recipe._load_tokenizer(), 32) for name, charts in recipe.data().items()}
    longest = max(max(values) for values in lengths.values())
    assert longest == lengths["test"][0] > max(lengths["train"])
    message = f"1 of 20 prompts have more than prompt_len={longest - 1} tokens; the longest has {longest}"
    with pytest.raises(DataError, match=message) as refused:
        build(folder, prompt_len=longest - 1).data()
    assert list(refused.value.problems) == [f"test, row 18: {longest} tokens"]
    assert f"prompt_len={longest}" in refused.value.hint
    skipping = build(folder, prompt_len=longest - 1, on_bad_rows="skip")
    assert {name: len(part) for name, part in skipping.data().items()} == {"train": 16, "validation": 2, "test": 1}
    assert any(message in note for note in skipping.notes())
    with pytest.raises(DataError, match="20 of 20 prompts"):
        build(folder, prompt_len=40, on_bad_rows="skip").data()


def test_synthetic_charts_stay_with_a_note():
    recipe = Chart(Options(size="tiny", prompt_len=40))
    assert sum(map(len, recipe.data().values())) == 576
    assert any("576 of 576 prompts have more than prompt_len=40" in note for note in recipe.notes())
