"""Rows for new inputs: complete, in order, in constant memory, whatever interrupts the command."""

import csv
import datetime
import fcntl
import json
import math
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch

import shoestring
from shoestring.base.errors import CheckpointError, RunError, UsageError
from shoestring.hardware import targets
from shoestring.pieces import Input
from shoestring.recipe.finding import find
from shoestring.runs.model import Model
from shoestring.runs.predict.predict import batch_size
from shoestring.runs.predict.predictor import Predictor
from shoestring.runs.predict.rows import RowWriter, count_rows, identifier_text, read_ids, write_text
from shoestring.runs.run import open_run
from tests.runs.predict import scorer

RECIPE = Path(scorer.__file__)
VALUES = [7, 1, "x", 4, None, 12, 5.5, 8, 2, "y", 6.5]
"""Two of them are no numbers, one is null."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run, which tests must not change."""
    run = tmp_path_factory.mktemp("finished") / "run"
    assert shoestring.train(str(RECIPE), run=run).status == "finished"
    return run


@pytest.fixture
def data(tmp_path):
    file = tmp_path / "inputs.jsonl"
    file.write_text("".join(f"{json.dumps(value)}\n" for value in VALUES))
    return file


def read_rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_input_has_a_row_in_every_form(run, data, tmp_path, run_command):
    arguments = ("predict", run, "--set", f"data={data}")
    status, out, err = run_command(*arguments)
    rows = [json.loads(line) for line in out.splitlines()]
    assert status == 1 and "11 rows, 3 of them with an error" in err and "input 4: it is null" in err
    assert [row["id"] for row in rows] == list(range(len(VALUES)))
    assert {row["id"] for row in rows if "error" in row} == {2, 4, 9}
    assert rows[0] == {"id": 0, "input": 7, "prediction": 1, "probability": rows[0]["probability"]}
    assert [row["prediction"] for row in rows if "error" not in row] == [1, 0, 0, 1, 0, 1, 0, 1]

    assert run_command(*arguments, "--out", tmp_path / "rows.jsonl")[0] == 1
    assert read_rows(tmp_path / "rows.jsonl") == rows
    assert shoestring.load(run).predict(VALUES) == shoestring.load(run).predict(str(data)) == rows

    status, out, _ = run_command(*arguments, "--out", tmp_path / "rows.csv", "--json")
    assert status == 1 and (json.loads(out)["rows"], json.loads(out)["errors"]) == (11, 3)
    with (tmp_path / "rows.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    assert list(cells[0]) == ["id", "input", "prediction", "probability", "error"]
    assert [(int(cell["id"]), cell["error"]) for cell in cells] == [(row["id"], row.get("error", "")) for row in rows]

    status, *_ = run_command(*arguments, "--out", tmp_path / "folder")
    folder_rows = read_rows(tmp_path / "folder" / "predictions.jsonl")
    assert folder_rows[0]["files"] == ["1.txt"] and (tmp_path / "folder" / "1.txt").read_bytes() == b"!"
    assert [{**row, "files": None} for row in folder_rows] == [{**row, "files": None} for row in rows]


def test_batch_on_a_gpu_is_planned_with_the_data_of_the_run(run, data, monkeypatch):
    """Inputs may lack what samples have, such as answers; the data of the run may be gone."""
    planned = []

    def refuse(loaded, *_):
        planned.append(loaded.options["data"])
        raise UsageError("the data cannot be read")

    monkeypatch.setattr("shoestring.planning.inference.plan_inference", refuse)
    opened = replace(open_run(run, {"data": data}, recipe=str(RECIPE)), target=targets.find("kaggle-t4"))
    assert opened.loaded.options["data"] == data
    assert batch_size(opened) == opened.loaded.parts.evaluation_size(opened.settings.micro_batch)
    assert planned == [None]


def test_killed_command_is_completed_by_its_repetition(run, tmp_path):
    data, out = tmp_path / "numbers.jsonl", tmp_path / "rows.jsonl"
    data.write_text("".join(f"{number}\n" for number in range(60)))
    whole = tmp_path / "whole.jsonl"
    options = {"data": data, "micro_batch": 4}
    shoestring.predict(run, out=whole, **options)
    command = [sys.executable, "-m", "shoestring", "predict", run, "--recipe", RECIPE, "--out", out]
    command += ["--set", f"data={data}", "--set", "micro_batch=4", "--set", "seconds=0.05"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not out.exists() or out.read_text().count("\n") < 8:
        time.sleep(0.005)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    rows_before = out.read_bytes()
    out.write_bytes(rows_before + b'{"id": 17, "inp')  # a row that the kill has cut
    predictions = shoestring.predict(run, recipe=str(RECIPE), out=out, **options, seconds=0.05)
    assert 8 <= rows_before.count(b"\n") < 60 and predictions.rows == 60
    assert out.read_bytes() == whole.read_bytes()

    stamp = out.stat().st_mtime_ns
    assert shoestring.predict(run, out=out, **options, seconds=0.05).rows == 60  # complete: nothing is written
    assert out.stat().st_mtime_ns == stamp


def test_time_limit_pauses(run, data, tmp_path, monkeypatch, capsys):
    data.write_text("1\n" * 200)
    out = tmp_path / "rows.csv"
    paused = shoestring.predict(run, data=data, out=out, limit_seconds=3.3, seconds=0.05, micro_batch=4)
    assert paused.status == "paused" and 0 < paused.rows < 200 and paused.reason.startswith("session limit")
    finished = shoestring.predict(run, data=data, out=out, seconds=0.05, micro_batch=4)
    assert (finished.status, finished.rows) == ("finished", 200)
    with out.open(newline="") as file:
        assert [int(row["id"]) for row in csv.DictReader(file)] == list(range(200))
    with pytest.raises(RunError, match="not all inputs are predicted"):
        shoestring.predict(run, data=data, limit_seconds=3.1, seconds=0.05, micro_batch=4)
    assert capsys.readouterr().out


def test_rows_of_another_origin_are_not_continued(run, data, tmp_path):
    out = tmp_path / "rows.jsonl"
    shoestring.predict(run, data=data, out=out)
    other_data = tmp_path / "other.jsonl"
    other_data.write_text("1\n")
    for changes in ({"data": other_data}, {"data": data, "seconds": 0.001}):
        with pytest.raises(UsageError, match="another run, other data or other options") as error:
            shoestring.predict(run, out=out, **changes)
    assert error.value.problems == ("seconds: 0.0, now 0.001",)
    with pytest.raises(UsageError, match="another run") as error:
        shoestring.predict(run / "best", out=out, data=data, precision="bf16")
    assert error.value.problems == ('precision: "fp32", now "bf16"',)
    with out.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="being written by another process"):
            shoestring.predict(run, out=out, data=data)
    (tmp_path / "rows.jsonl.meta.json").unlink()
    for content in (out.read_text(), "one line of mine"):
        out.write_text(content)
        with pytest.raises(UsageError, match=r"exists, and there is no rows\.jsonl\.meta\.json"):
            shoestring.predict(run, out=out, data=data)
        assert out.read_text() == content
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "predictions.jsonl").touch()
    shoestring.predict(run, out=tmp_path / "folder", data=data)  # a command that was killed at its start left no more
    (tmp_path / "folder" / "predictions.jsonl.meta.json").unlink()
    (tmp_path / "folder" / "mine").touch()
    with pytest.raises(UsageError, match="is not empty"):
        shoestring.predict(run, out=tmp_path / "folder", data=data)


def test_rows_that_have_changed_are_not_continued(run, data, tmp_path):
    out = tmp_path / "rows.jsonl"
    shoestring.predict(run, data=data, out=out)
    rows = out.read_text().splitlines(keepends=True)
    for changed in (rows[:3] + rows[4:], [*rows, rows[-1]], [rows[1], rows[0], *rows[2:]], [*rows[:-1], "[]\n"]):
        out.write_text("".join(changed))
        with pytest.raises(UsageError, match="cannot be continued"):
            shoestring.predict(run, data=data, out=out)
    out.write_text("".join(rows[:5]) + rows[5][:9])
    shoestring.predict(run, data=data, out=out)
    assert out.read_text() == "".join(rows)


def test_failed_command_does_not_block_its_correction(run, data, tmp_path):
    out = tmp_path / "rows.csv"
    with pytest.raises(RunError, match="not JSON"):
        shoestring.predict(
            run, recipe=recipe_with(lambda _, __, batch: [object()] * len(batch[0])), data=data, out=out, micro_batch=4
        )
    assert shoestring.predict(run, data=data, out=out, seconds=0.001).rows == len(VALUES)


def test_cells_of_any_text_are_one_row(tmp_path):
    texts = ["a\rb", 'quote " and, comma', "two\nlines", "x" * 200_000, "\ud83d half"]
    rows = [{"id": text[:5], "input": text, "prediction": number} for number, text in enumerate(texts)]
    for name in ("rows.csv", "rows.jsonl"):
        path = tmp_path / name
        with path.open("w+b") as file:
            writer = RowWriter(partial(write_text, file.fileno()), csv=name.endswith("csv"))
            writer.write([{"id": "bad", "error": "no\r\nreason"}, *rows])
            writer.finish()
        written = count_rows(path)
        assert (written.count, written.errors, written.bytes) == (6, 1, path.stat().st_size)
        assert list(read_ids(path)) == [identifier_text(row["id"]) for row in ({"id": "bad"}, *rows)]


def test_out_of_memory_halves_the_batch(run, data, tmp_path, capsys):
    out, stopped = tmp_path / "rows.jsonl", tmp_path / "stopped.jsonl"
    shoestring.predict(run, data=data, out=out, most=1, micro_batch=4)
    assert read_rows(out) == shoestring.load(run).predict(VALUES)
    meta = json.loads((tmp_path / "rows.jsonl.meta.json").read_text())
    assert [event.partition(":")[0] for event in meta["out_of_memory"]] == ["out of memory with 3 inputs at once"]
    assert "continuing with 1" in capsys.readouterr().err
    # A continued command begins with the size that fits.
    stopped.write_text("".join(out.read_text().splitlines(keepends=True)[:5]))
    shutil.copy(tmp_path / "rows.jsonl.meta.json", tmp_path / "stopped.jsonl.meta.json")
    shoestring.predict(run, data=data, out=stopped, most=1, micro_batch=4)
    assert stopped.read_bytes() == out.read_bytes() and "continuing with" not in capsys.readouterr().err


def test_single_input_that_does_not_fit_is_an_error_of_its_row(run, monkeypatch):
    model = shoestring.load(run)
    plain = model.recipe.collate

    def collate(samples):
        if any(sample.value == 12 for sample in samples):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(samples)

    monkeypatch.setattr(model.recipe, "collate", collate)
    rows = model.predict([1, 12, 2])
    assert rows[1] == {"id": 1, "error": "out of memory: CUDA out of memory"}
    assert [row.get("prediction") for row in rows] == [0, None, 0]
    with pytest.raises(RunError, match="out of memory with a single input"):
        model.predict([12])


def test_single_input_is_tried_again_without_cached_memory(run, monkeypatch):
    model = shoestring.load(run)
    plain, calls = model.recipe.collate, []

    def collate(samples):
        calls.append(len(samples))
        if len(calls) <= 3:  # all, the first half, and the first one
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(samples)

    expected = model.predict([1, 12, 2, 3])
    monkeypatch.setattr(model.recipe, "collate", collate)
    assert model.predict([1, 12, 2, 3]) == expected
    assert calls == [4, 2, 1, 1, 1, 1, 1]


def test_memory_does_not_grow_with_the_number_of_inputs(run, tmp_path):
    data = tmp_path / "many.jsonl"
    data.write_text("5\n" * 10_000)
    scorer.LIVE["most"] = 0
    model = shoestring.load(run, micro_batch=16)
    live = sys.modules[type(model.recipe).__module__].LIVE
    live["most"] = 0
    assert len(model.predict(data)) == 10_000
    assert live["most"] <= 32


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([1], "returned 1 values for a batch of 2 samples"),
        (
            [1, object()],
            "for the row with the id 1, returned <object object at 0x[0-9a-f]*> of type object, which is not",
        ),
        ([{"prediction": 1, "files": {"../x": b""}}] * 2, "not a name for a file in the output folder"),
        ([{"prediction": 1, "files": {"x": b""}}] * 2, "have a file of the same name"),
        ([{"prediction": 1, "files": {"predictions.jsonl": b""}}] * 2, "not a name for a file in the output folder"),
    ],
)
def test_recipe_that_returns_something_else_is_an_error(run, data, tmp_path, answer, message):
    data.write_text("1\n2\n")
    with pytest.raises(RunError, match=message):
        shoestring.predict(run, recipe=recipe_with(lambda *_: answer), data=data, out=tmp_path / "folder")


def test_value_that_json_lacks_is_encoded_or_an_error_of_its_row(run, data, tmp_path):
    loaded = find(str(RECIPE))
    sample = sys.modules[type(loaded.recipe).__module__].Sample
    load = partial(sample, 7)
    inputs = [
        Input(value={"cell": math.nan}, id=math.nan, load=load),
        Input(value={"cell": b"x"}, load=load),
        Input(id=object(), load=load),
        Input(value=datetime.date(2026, 1, 2), id=torch.tensor(7), load=load),
    ]
    type(loaded.recipe).inputs = lambda _, source: inputs
    out = tmp_path / "rows.jsonl"
    for _ in range(2):  # the second command compares the identifiers of what is written
        assert shoestring.predict(run, recipe=loaded, data=data, out=out).errors == 2
        first, *errors, last = read_rows(out)
        assert first == {"id": 0, "input": {"cell": None}, "prediction": 1, "probability": first["probability"]}
        assert errors == [
            {"id": 1, "error": "its value is b'x' of type bytes at cell, which is not JSON"},
            {"id": 2, "error": errors[1]["error"]},
        ]
        assert (last["id"], last["input"]) == (7, "2026-01-02")
        out.write_text("".join(out.read_text().splitlines(keepends=True)[:2]))


def recipe_with(predict):
    """Return the recipe loaded from its file, with another method `predict`."""
    loaded = find(str(RECIPE))
    type(loaded.recipe).predict = predict
    return loaded


class Drawing:
    """Its samples and predictions are what generators draw: one is created by each process, one by the first sample."""

    effective_batch = 2

    def __init__(self):
        self.generator, self.numbers = random.Random(), [0.0] * 6

    def model(self):
        return torch.nn.Linear(1, 1)

    def batch(self, size):
        return torch.zeros(size, 1)

    def loss(self, model, batch):
        return model(batch).mean()

    def data(self):
        return {"train": self}

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        if not hasattr(self, "late"):
            self.late = np.random.default_rng()
        return torch.tensor([self.late.random()])

    def predict(self, model, batch):
        return [float(value) + self.generator.random() for value in batch]


def test_generators_that_the_recipe_and_its_samples_hold_are_seeded(run):
    def rows(completed):
        opened = replace(open_run(run, {}, recipe=str(RECIPE)), loaded=find(Drawing()))
        model = Model(run=opened, module=torch.nn.Linear(1, 1), update=None, notes=())
        samples = opened.loaded.recipe.data()["train"]
        inputs = [Input(load=partial(samples.__getitem__, index)) for index in range(len(samples))]
        return list(chain.from_iterable(Predictor(model=model, batch=2).rows(inputs, completed=completed)))

    assert rows(0)[2:] == rows(2) and len({row["prediction"] for row in rows(0)}) == 6


def test_samples_need_no_inputs_of_the_recipe(run):
    """A recipe without `inputs` predicts for samples; its own columns may have any name."""
    recipe = recipe_with(lambda _, __, batch: [{"prediction": 1, "target": float(row)} for row in batch[0][:, 0]])
    del type(recipe.recipe).inputs
    rows = shoestring.load(run, recipe=recipe).predict([(torch.tensor([2.0]), 0), (torch.tensor([3.0]), 0)])
    assert rows == [{"id": number, "input": None, "prediction": 1, "target": number + 2} for number in range(2)]


def test_recipe_without_predict_is_an_error(run, data):
    loaded = find(str(RECIPE))
    del type(loaded.recipe).predict
    with pytest.raises(UsageError, match=r"cannot predict: it has no predict\(model, batch\)"):
        shoestring.predict(run, recipe=loaded, data=data)


def test_preprocessing_is_that_of_the_training_data(run, tmp_path):
    assert json.loads((run / "preprocessing" / "scaler" / "mean.json").read_text()) == 6
    other_data = tmp_path / "numbers.txt"
    other_data.write_text("1 2 3 4")
    rows = tmp_path / "rows.jsonl"
    evaluation = shoestring.evaluate(run, data=other_data, whole=True, out=rows)
    model = shoestring.load(run).model
    inputs = torch.tensor([[1.0], [2.0], [3.0], [4.0]]) - 6
    assert evaluation.metrics["all"]["loss"] == pytest.approx(model(inputs)[:, 0].mean().item())
    assert [(row["id"], row["target"], row["prediction"]) for row in read_rows(rows)][:4] == [
        (number, 0, 0) for number in range(4)
    ]


def test_run_without_stored_preprocessing_derives_it_from_its_data(run, tmp_path):
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    shutil.rmtree(copy / "preprocessing")
    assert shoestring.load(copy).predict([7, 1]) == shoestring.load(run).predict([7, 1])
    assert not (copy / "preprocessing").exists()


@pytest.mark.parametrize("damage", ["change", "remove", "add", "link", "manifest"])
def test_damaged_preprocessing_is_an_error(run, tmp_path, damage):
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    file = copy / "preprocessing" / "scaler" / "mean.json"
    if damage == "change":
        file.write_text("7")
    elif damage == "manifest":
        (copy / "preprocessing" / "manifest.json").write_text("{}")
    elif damage == "add":
        file.with_name("more.json").touch()
    else:
        file.unlink()
        if damage == "link":
            file.symlink_to(run / "preprocessing" / "scaler" / "mean.json")
    with pytest.raises(CheckpointError, match="preprocessing is damaged"):
        shoestring.load(copy)
