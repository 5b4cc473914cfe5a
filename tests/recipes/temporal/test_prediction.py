import tracemalloc
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from shoestring.base.errors import DataError, UsageError
from shoestring.recipe.inputs import Input
from shoestring_recipes.temporal import ARCHITECTURES, Options, Temporal
from shoestring_recipes.temporal.bars import load_sample_bars

from .market import change_future, concatenate, random_bars, write_csv

SEQ_LEN, WARM_UP = 20, 51  # bars until the third month has closed
FIRST = WARM_UP + SEQ_LEN - 1
COLUMNS = ("open", "high", "low", "close", "volume")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("preprocessing")
    recipe = Temporal()
    recipe.data()
    recipe.save_preprocessing(folder)
    return folder


@lru_cache
def goog() -> pd.DataFrame:
    return load_sample_bars()


def make_recipe(folder: Path, **options: Any) -> Temporal:
    recipe = Temporal(Options(size="tiny", **options))
    recipe.load_preprocessing(folder)
    return recipe


def predict(recipe: Temporal, inputs: Any) -> dict[int, Any]:
    """Return the prediction of each input by its identifier, or its error."""
    torch.manual_seed(0)
    model = recipe.model().eval()
    predictions: dict[int, Any] = {}
    usable: list[Input] = []
    for source in inputs:
        predictions[source.id] = source.error
        usable += [source] if source.error is None else []
    for start in range(0, len(usable), 64):
        batch = recipe.collate([source.load() for source in usable[start : start + 64]])
        with torch.no_grad():
            rows = recipe.predict(model, batch)
        predictions |= {source.id: row for source, row in zip(usable[start : start + 64], rows, strict=True)}
    return predictions


@pytest.mark.parametrize("architecture", ["transformer", "ensemble"])
def test_every_bar_with_a_full_history_has_probabilities(folder: Path, architecture: str) -> None:
    recipe = make_recipe(folder, architecture=architecture)
    inputs = recipe.inputs(None)
    predictions = predict(recipe, inputs)
    assert list(predictions) == list(range(FIRST, 1047)) and len(inputs) == len(predictions)
    assert list(inputs)[-1].value == {"symbol": "GOOG", "time": "2008-10-14T00:00:00", "close": 362.71}
    for row in predictions.values():
        probabilities = row["probabilities"]
        assert sum(probabilities.values()) == pytest.approx(1) and [*probabilities] == ["down", "flat", "up"]
        assert row["prediction"] == max(probabilities, key=probabilities.get)
        assert ("weights" in row) == (architecture == "ensemble")
    # The samples of evaluation, whose targets do not matter, have the same predictions.
    whole = recipe.whole()
    batch = recipe.collate(whole.__getitems__(list(range(64))))
    with torch.no_grad():
        torch.manual_seed(0)
        rows = recipe.predict(recipe.model().eval(), batch)
    assert rows == [predictions[recipe.identify(whole, index)] for index in range(64)]


def test_predictions_depend_on_earlier_bars_and_never_on_later_ones(folder: Path, tmp_path: Path) -> None:
    recipe = make_recipe(folder, architecture="lstm")
    original = predict(recipe, recipe.inputs(None))
    for cut in (FIRST + 64, 700, 1046):
        changed_bars = change_future(goog(), cut, seed=cut)
        later = predict(recipe, recipe.inputs(write_csv(tmp_path / "bars.csv", changed_bars)))
        shortened = predict(recipe, recipe.inputs(goog()[:cut].astype({"symbol": "str"}).to_dict("records")))
        whole_batches = (cut - FIRST) // 64 * 64  # a kernel may round a smaller batch differently
        for position in range(FIRST, FIRST + whole_batches):
            assert later[position] == original[position] == shortened[position]
        assert all(later[position] != original[position] for position in range(cut, min(cut + 5, 1047)))
    earlier_bars = goog().copy()
    earlier_bars.loc[1043, "close"] *= 0.99
    earlier = predict(recipe, recipe.inputs(write_csv(tmp_path / "bars.csv", earlier_bars)))
    assert earlier[1046] != original[1046] and earlier[1042] == original[1042]


def test_an_unusable_row_is_one_error_in_its_place(folder: Path, tmp_path: Path) -> None:
    lines = write_csv(tmp_path / "bars.csv", goog()).read_text().splitlines()
    good = lines[1:]
    lines[501] = "GOOG,soon,1,1,1,1,1"
    lines[601] += ",1,2"
    lines[701] = lines[701].replace("GOOG,2007", "GOOG,2007-").replace(",", ",x", 2)
    (tmp_path / "bad.csv").write_text("\n".join(lines))
    recipe = make_recipe(folder)
    inputs = list(recipe.inputs(tmp_path / "bad.csv"))
    assert [source.id for source in inputs] == list(range(FIRST, 1047))
    errors = {source.id: source.error for source in inputs if source.error}
    assert list(errors) == [500, 600, 700]
    assert errors[500] == "time 'soon' is not a time; write 2024-01-31 or 2024-01-31 09:30"
    assert "has 9 fields" in errors[600] and "is not a finite number" in errors[700]
    values = {source.id: source.value for source in inputs}
    counts = [values[position].get("unusable_rows") for position in (499, 501, 500 + FIRST, 501 + FIRST, 701)]
    assert counts == [None, 1, 1, None, 1]
    # The other bars are those of a file without these rows, as in training with skipped rows.
    (tmp_path / "good.csv").write_text(
        "\n".join([lines[0], *(line for position, line in enumerate(good) if position not in errors)])
    )
    expected = [source.load() for source in recipe.inputs(tmp_path / "good.csv")]
    assert all(
        torch.equal(source.load()[0], row)
        for source, (row,) in zip([source for source in inputs if not source.error], expected, strict=True)
    )
    skipping = make_recipe(folder, on_bad_rows="skip")
    assert [source.id for source in skipping.inputs(tmp_path / "bad.csv")] == [
        position for position in values if position not in errors
    ]
    assert "3 of 1,047 rows cannot be used" in skipping.notes()[1]


def test_the_latest_bar_of_each_symbol(folder: Path) -> None:
    frames = [random_bars(200, symbol=name, seed=seed, spacing="1D") for seed, name in enumerate("ABCD")]
    frames[1] = frames[1][:50]
    rows: list[Any] = concatenate(*frames).sort_values("time", kind="stable").to_dict("records")
    last_of_b = max(position for position, row in enumerate(rows) if row["symbol"] == "B")
    rows[-2] = rows[-2] | {"high": 0.0}  # the last one of C
    rows.append("text")
    recipe = make_recipe(folder, bars="latest")
    inputs = {source.id: source for source in recipe.inputs(rows)}
    assert list(inputs) == [last_of_b, len(rows) - 4, len(rows) - 3, len(rows) - 2, len(rows) - 1]
    assert [bool(source.error) for source in inputs.values()] == [True, False, True, False, True]
    assert "too few bars before it" in inputs[last_of_b].error
    assert inputs[len(rows) - 3].error.startswith("high 0 is not positive")
    assert inputs[len(rows) - 1].error.startswith("is of type str, not an object with the keys time, open")
    assert inputs[len(rows) - 2].value["symbol"] == "D"
    skipping = make_recipe(folder, bars="latest", on_bad_rows="skip")
    assert [source.value["symbol"] for source in skipping.inputs(rows)] == ["B", "C", "A", "D"]


def test_rows_of_a_list_are_those_of_a_file(folder: Path, tmp_path: Path) -> None:
    rows: list[Any] = goog()[:120].drop(columns="symbol").astype({"time": "str"}).to_dict("records")
    path = tmp_path / "bars.csv"
    goog()[:120].drop(columns="symbol").to_csv(path, index=False)
    recipe = make_recipe(folder)
    from_file, from_list = list(recipe.inputs(path)), list(recipe.inputs(rows))
    assert [(source.id, source.value) for source in from_file] == [(source.id, source.value) for source in from_list]
    assert "symbol" not in from_list[0].value
    assert all(torch.equal(a.load()[0], b.load()[0]) for a, b in zip(from_file, from_list, strict=True))
    assert list(recipe.inputs([])) == []
    del rows[100]["volume"]
    rows[101]["Datetime"] = "2024-01-01"
    errors = {source.id: source.error for source in recipe.inputs(rows) if source.error}
    assert errors == {100: "there is no column volume", 101: "time: more than one column has this name"}
    assert len(list(recipe.inputs([{"close": 1}, 7]))) == 2


def test_too_few_bars_and_a_missing_scaler_are_errors(folder: Path) -> None:
    rows: list[Any] = goog()[:FIRST].to_dict("records")
    with pytest.raises(DataError, match="none of the 70 bars has a full history"):
        make_recipe(folder).inputs(rows)
    with pytest.raises(UsageError, match="the scaler of the training data is not known"):
        Temporal().inputs(rows)


def test_bars_of_another_spacing_are_noted(folder: Path) -> None:
    recipe = make_recipe(folder)
    recipe.inputs(random_bars(3000).to_dict("records"))
    assert "trained with the timeframes 1 week and 1 month" in recipe.notes()[-1]
    recipe.inputs(None)
    assert recipe.notes() == ["data: 1,047 bars, of which 977 have a full history"]


def test_many_bars_need_little_memory(folder: Path, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "bars.csv", random_bars(12_000, spacing="1D"))
    inputs = make_recipe(folder).inputs(path)
    tracemalloc.start()
    count = sum(source.load()[0].shape == (SEQ_LEN, 29) for source in inputs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == len(inputs) > 11_000
    assert peak < 1 << 20


def test_all_architectures_predict(folder: Path) -> None:
    for architecture in ARCHITECTURES:
        recipe = make_recipe(folder, architecture=architecture, bars="latest")
        (row,) = predict(recipe, recipe.inputs(None)).values()
        assert row["prediction"] in ("down", "flat", "up")
