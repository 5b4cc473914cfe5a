"""Cross-validation: a run for each fold under one plan, continued after interruptions, and what is made of all."""

import json
import os
import shutil
import signal
import time

import pytest
import torch
from torch.utils.data import TensorDataset

import shoestring
from shoestring.answers import live
from shoestring.base import display
from shoestring.base.errors import RunError, UsageError
from shoestring.runs.folds.cross_validation import cross_validate
from shoestring.runs.folds.outcome import metrics_of_folds
from shoestring.runs.folds.predict import mean_of
from shoestring.runs.train.launch import launch
from shoestring.runs.train.session import LaunchRequest
from shoestring.training.run_directory import fold_runs


class Points:
    """Points beside a line; `stop_at` is the number of the call of `loss` at which a signal asks to stop."""

    epochs, effective_batch, best = 2, 8, ("accuracy", "max")

    def __init__(self, stop_at=0):
        self.calls = [stop_at]

    def model(self):
        return torch.nn.Linear(2, 2)

    def batch(self, size):
        return torch.zeros(size, 2), torch.zeros(size, dtype=torch.int64)

    def loss(self, model, batch):
        if torch.is_grad_enabled() and not torch._guards.detect_fake_mode():
            self.calls[0] -= 1
            if self.calls[0] == 0:
                os.kill(os.getpid(), signal.SIGTERM)
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    def data(self):
        points = torch.linspace(-1, 1, 42).reshape(21, 2).flip(0)
        return TensorDataset(points, (points[:, 0] > 0).long())

    def evaluate(self, model, batches):
        return {"accuracy": float(torch.cat([model(x).argmax(-1) == y for x, y in batches]).float().mean())}

    def predict(self, model, batch):
        return model(batch[0]).softmax(-1)[:, 1]

    def targets(self, batch):
        return batch[1]


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """A finished cross-validation, which tests must not change."""
    run = tmp_path_factory.mktemp("folds") / "run"
    return run, shoestring.cross_validate(Points(), folds=3, run=run, on="cpu")


def test_each_sample_is_predicted_by_the_model_that_was_not_trained_on_it(unbroken):
    run, outcome = unbroken
    assert outcome.finished and [fold.finished for fold in outcome.folds] == [True] * 3
    predicted = rows(run / "out_of_fold.jsonl")
    assert sorted(row["id"] for row in predicted) == list(range(21))
    assert all(set(row) == {"id", "fold", "target", "prediction"} for row in predicted)
    of_second = [row for row in predicted if row["fold"] == 2]
    loaded = shoestring.load(run / "fold-2", recipe=Points(), on="cpu")
    points, labels = Points().data().tensors
    assert [int(labels[row["id"]]) for row in of_second] == [row["target"] for row in of_second]
    with torch.no_grad():
        expected = Points().predict(loaded.model, (points[[row["id"] for row in of_second]],))
    assert [row["prediction"] for row in of_second] == pytest.approx(expected.tolist())


def test_metrics_have_a_mean_and_a_spread(unbroken):
    _, outcome = unbroken
    (metric,) = [metric for metric in outcome.metrics if metric.name == "accuracy"]
    assert (metric.part, len(metric.values)) == ("validation", 3)
    assert metric.mean == pytest.approx(sum(metric.values) / 3)
    text = display.text(outcome)
    assert "accuracy (validation)" in text and "fold 3" in text
    first, second = ({"test": {"loss": value, "name": "a", "only": 1.0}} for value in (1.0, 3.0))
    del second["test"]["only"]
    (loss,) = metrics_of_folds([first, second])
    assert (loss.mean, loss.values) == (2.0, (1.0, 3.0)) and loss.deviation == pytest.approx(2**0.5)
    assert metrics_of_folds([]) == () and metrics_of_folds([first])[0].deviation is None


def test_all_folds_have_one_plan(unbroken):
    run, _ = unbroken
    plans = [json.loads((run / f"fold-{number}" / "plan.json").read_text()) for number in (1, 2, 3)]
    assert [plan["options"]["fold"] for plan in plans] == ["1/3", "2/3", "3/3"]
    assert plans[0]["plan"]["job"] == plans[1]["plan"]["job"] == plans[2]["plan"]["job"]


def test_each_fold_is_a_run_of_its_own_and_its_files_name_it(unbroken):
    run, _ = unbroken
    plans = {fold: json.loads((fold / "plan.json").read_text()) for fold in run.glob("fold-*")}
    assert len({plan["run"] for plan in plans.values()}) == 3
    for fold, plan in plans.items():
        manifests = [path.parent for path in fold.rglob("manifest.json")]
        assert {path.relative_to(fold).parts[0] for path in manifests} >= {"checkpoints", "light"}
        identity = {"id": plan["run"], "recipe": plan["recipe"], "options": plan["options"]}
        assert all(json.loads((path / "manifest.json").read_text())["run"] == identity for path in manifests)
        assert json.loads((fold / "state.json").read_text())["run"] == plan["run"]
        first = json.loads((fold / "events.jsonl").read_text().splitlines()[0])
        assert first["event"] != "session" or first["run"] == plan["run"]


def test_interrupted_folds_end_in_the_same_bits(unbroken, tmp_path):
    whole, _ = unbroken
    run = tmp_path / "run"
    paused = shoestring.cross_validate(Points(stop_at=6), folds=3, run=run, on="cpu")
    assert (paused.status, paused.reason.partition(" is paused")[0]) == ("paused", "fold 2")
    assert [fold.status for fold in paused.folds] == ["finished", "paused", "paused"] and paused.out_of_fold is None
    before = (run / "fold-1" / "events.jsonl").read_bytes()
    assert shoestring.cross_validate(Points(), folds=3, run=run, on="cpu").finished
    assert (run / "fold-1" / "events.jsonl").read_bytes() == before
    assert (run / "out_of_fold.jsonl").read_bytes() == (whole / "out_of_fold.jsonl").read_bytes()


RECIPE = """
import os
import torch

class Lines:
    epochs, effective_batch = 1, 4

    def model(self):
        return torch.nn.Linear(2, 1)

    def batch(self, size):
        return torch.zeros(size, 2), torch.zeros(size)

    def loss(self, model, batch):
        if number := int(os.environ.get("SIGNAL_TO_ITSELF", "0")):
            os.kill(os.getpid(), number)
        return (model(batch[0])[:, 0] - batch[1]).square().mean()

    def data(self):
        return torch.utils.data.TensorDataset(torch.linspace(0, 1, 16).reshape(8, 2), torch.ones(8))

    def identify(self, dataset, index):
        return f"line {index}"

    def predict(self, model, batch):
        return model(batch[0])[:, 0]
"""


def test_child_processes_train_and_predict_the_folds(tmp_path, monkeypatch):
    file, run = tmp_path / "lines.py", tmp_path / "run"
    file.write_text(RECIPE)
    request = LaunchRequest(run=run, started=time.monotonic(), on="cpu")
    parent, pids = os.getpid(), tmp_path / "pids"

    def in_child(work):
        with pids.open("a") as out:
            out.write(f"{os.getpid()}\n")
        work()
        return 0

    outcome = cross_validate(str(file), {}, request, 2, in_child=in_child)
    assert (outcome.status, [fold.status for fold in outcome.folds]) == ("finished", ["finished"] * 2)
    of_children = set(map(int, pids.read_text().split()))
    assert len(of_children) == 3 and parent not in of_children
    assert sorted(row["id"] for row in rows(run / "out_of_fold.jsonl")) == [f"line {index}" for index in range(8)]

    # The rows of `predict` have the same names, and the kernel of a notebook has a child process for each fold.
    shoestring.predict(run, recipe=str(file), on="cpu", out=tmp_path / "mean.jsonl")
    assert [row["id"] for row in rows(tmp_path / "mean.jsonl")] == [f"line {index}" for index in range(8)]
    started = []
    monkeypatch.setattr(live, "is_notebook", lambda: True)

    def train(recipe, values, request):
        started.append(values)
        return launch(recipe, values, request)

    monkeypatch.setattr(live, "train_in_child", train)
    notebook = shoestring.cross_validate(str(file), folds=2, run=tmp_path / "notebook", on="cpu")
    assert notebook.status == "finished" and [values["fold"] for values in started] == ["1/2", "2/2"]
    assert (tmp_path / "notebook" / "out_of_fold.jsonl").read_bytes() == (run / "out_of_fold.jsonl").read_bytes()


def test_the_command_that_continues_is_that_of_all_folds(tmp_path, monkeypatch):
    file, run = tmp_path / "lines.py", tmp_path / "run"
    file.write_text(RECIPE)
    whole = f"shoestring train {file} --folds 2 --run {run} --on cpu"
    request = LaunchRequest(run=run, started=time.monotonic(), on="cpu", probe=False)

    def in_child(work):
        os.environ["SIGNAL_TO_ITSELF"] = str(signal.SIGKILL)
        work()
        return 0

    monkeypatch.setenv("SIGNAL_TO_ITSELF", "0")
    with pytest.raises(RunError, match="ended by SIGKILL") as error:
        cross_validate(str(file), {}, request, 2, in_child=in_child)
    assert error.value.hint == f"train again to continue from update 0: {whole}"
    assert json.loads((run / "fold-1" / "state.json").read_text())["next"] == whole
    # A signal that asks to stop, in this process; and the run of one fold alone.
    monkeypatch.setenv("SIGNAL_TO_ITSELF", str(signal.SIGTERM))
    shoestring.cross_validate(str(file), folds=2, run=run, on="cpu")
    assert json.loads((run / "fold-1" / "state.json").read_text())["next"] == whole
    alone = shoestring.train(str(file), run=run / "fold-1", on="cpu")
    assert alone.status == "paused"
    assert json.loads((run / "fold-1" / "state.json").read_text())["next"] == (
        f"shoestring train {file} --run {run / 'fold-1'} --on cpu"
    )


def test_one_limit_is_for_all_folds(tmp_path):
    paused = shoestring.cross_validate(Points(), folds=3, run=tmp_path / "run", on="cpu", limit_seconds=0)
    assert paused.status == "paused" and paused.folds[1].reason == "it has not begun"


def test_a_fold_that_cannot_begin_leaves_nothing(tmp_path):
    with pytest.raises(UsageError, match="fold=1/99: the training data has 21 samples"):
        shoestring.cross_validate(Points(), folds=99, run=tmp_path / "run", on="cpu")
    assert not (tmp_path / "run").exists()
    (tmp_path / "own").mkdir()
    with pytest.raises(UsageError, match="fold=1/99"):
        shoestring.train(Points(), run=tmp_path / "own", on="cpu", fold="1/99")
    assert not list((tmp_path / "own").iterdir())


def test_other_options_and_other_folders_are_refused(unbroken, tmp_path):
    run, _ = unbroken
    with pytest.raises(UsageError, match=r"options of the run in .*fold-1 cannot be changed"):
        shoestring.cross_validate(Points(), folds=3, run=run, on="cpu", epochs=5)
    with pytest.raises(UsageError, match=r"fold-1 trains a fold of 3, and 4 folds were asked for"):
        shoestring.cross_validate(Points(), folds=4, run=run, on="cpu")
    assert not (run / "fold-4").exists()
    with pytest.raises(UsageError, match="fold=1/3 trains one fold, and --folds 3 trains all"):
        shoestring.cross_validate(Points(), folds=3, run=run, on="cpu", fold="1/3")
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UsageError, match="something else than the runs of folds"):
        shoestring.cross_validate(Points(), folds=3, run=tmp_path)
    with pytest.raises(UsageError) as error:
        shoestring.evaluate(run, recipe=None)
    assert error.value.hint.endswith(f"such as {run / 'fold-1'}")


def test_out_of_fold_predictions_that_are_gone_are_written_again(unbroken, tmp_path):
    run = shutil.copytree(unbroken[0], tmp_path / "run")
    (run / "out_of_fold.jsonl").unlink()
    assert shoestring.cross_validate(Points(), folds=3, run=run, on="cpu").out_of_fold
    assert (run / "out_of_fold.jsonl").read_bytes() == (unbroken[0] / "out_of_fold.jsonl").read_bytes()


def test_a_run_of_a_fold_is_replayed_and_probed_as_any_other(unbroken):
    run, _ = unbroken
    assert shoestring.replay(run / "fold-1", update=2, recipe=Points()).update == 2


def test_a_run_of_another_kind_in_the_folder_is_no_fold(unbroken, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(unbroken[0] / "fold-1", run / "fold-1")
    shutil.copytree(unbroken[0] / "fold-1", run / "fold-2")
    assert [path.path.name for path in fold_runs.runs_in(run)] == ["fold-1"]


def test_predictions_are_the_mean_of_all_folds(unbroken, tmp_path):
    run, _ = unbroken
    out = tmp_path / "mean.jsonl"
    outcome = shoestring.predict(run, recipe=Points(), on="cpu", out=out)
    assert (outcome.status, outcome.rows, outcome.out) == ("finished", 21, str(out))
    of_folds = [rows(tmp_path / "mean.jsonl.folds" / f"fold-{number}.jsonl") for number in (1, 2, 3)]
    for mean, *single in zip(rows(out), *of_folds, strict=True):
        assert mean["prediction"] == pytest.approx(sum(row["prediction"] for row in single) / 3)
    models = [shoestring.load(run / f"fold-{number}", recipe=Points(), on="cpu") for number in (1, 2, 3)]
    first = [model.predict([Points().data()[0]])[0]["prediction"] for model in models]
    assert rows(out)[0]["prediction"] == pytest.approx(sum(first) / 3)  # of the same sample
    with pytest.raises(UsageError, match="are one file"):
        shoestring.predict(run, recipe=Points(), on="cpu", out=tmp_path / "folder")


def test_only_fractions_are_averaged():
    assert mean_of([0.25, 0.75]) == mean_of([0, 1.0]) == 0.5
    assert mean_of([[0.0, 1.0], [1.0, 1.0]]) == [0.5, 1.0] and mean_of([{"a": 0.0}, {"a": 1.0}]) == {"a": 0.5}
    assert mean_of([2, 5]) is mean_of(["cat", "dog"]) is mean_of([[0.0], [0.0, 1.0]]) is None
    assert (mean_of([2, 2]), mean_of(["cat", "cat"])) == (2, "cat")


def test_report_has_the_metrics_of_all_folds(unbroken, tmp_path):
    run, _ = unbroken
    page = shoestring.report(run, out=tmp_path / "page.html").read_text()
    assert "3 folds of Points" in page and "accuracy (validation)" in page and "The spread is" in page


def test_place_of_copies_is_one_for_each_fold():
    from shoestring.recipe.folds import Fold
    from shoestring.runs.folds.cross_validation import _place

    places = [_place(url, Fold(2, 5)) for url in (None, "/mnt/copies/", "s3://b/run", "kaggle://my-run")]
    assert places == [None, "/mnt/copies/fold-2", "s3://b/run/fold-2", "kaggle://my-run-fold-2"]
