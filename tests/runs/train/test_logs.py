"""`--log` of a run."""

import csv
import subprocess
import sys

import pytest

import shoestring
from shoestring.base.errors import UsageError
from shoestring.training.monitor.events import read
from tests.libraries import hide
from tests.mine import Mine


def test_log_is_written_in_later_sessions_as_well(tmp_path):
    run = tmp_path / "run"
    assert shoestring.train(Mine(), run=run, limit_seconds=1e-9, log=["csv"]).update == 0
    (run / "logs" / "csv").mkdir(parents=True, exist_ok=True)
    assert shoestring.train(Mine(), run=run).status == "finished"
    with (run / "logs" / "csv" / "metrics.csv").open() as file:
        losses = [
            (int(row["update"]), float(row["value"])) for row in csv.DictReader(file) if row["name"] == "train/loss"
        ]
    assert losses == [(event["update"], event["loss"]) for event in read(run / "events.jsonl") if "loss" in event]
    assert losses[-1][0] == 9


def test_log_that_cannot_be_written_is_refused_before_planning(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="--log tensorbord: there is no such log") as caught:
        shoestring.train(Mine(), run=tmp_path / "run", log=["csv", "tensorbord"])
    assert "tensorboard" in caught.value.hint
    hide(monkeypatch, "tensorboard")
    with pytest.raises(UsageError, match=r"^tensorboard is not installed") as caught:
        shoestring.train(Mine(), run=tmp_path / "run", log=["tensorboard"])
    assert "[tensorboard]" in caught.value.hint
    assert not (tmp_path / "run").exists()


def test_training_imports_no_tensorboard():
    code = "import sys, shoestring.runs.train.launch; sys.exit('tensorboard' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
