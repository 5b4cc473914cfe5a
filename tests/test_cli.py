"""The command line as a person and as a program meet it."""

import json
import os
import subprocess
import sys

import pytest

from shoestring import cli


@pytest.fixture
def shoestring(monkeypatch, capsys):
    """Runs the command line in this process; returns (status, stdout, stderr)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["shoestring", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return run


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        """
import torch
from torch import nn

class Mine:
    epochs = 2
    effective_batch = 4
    def model(self): return nn.Linear(3, 1)
    def batch(self, size): return torch.zeros(size, 3)
    def loss(self, model, batch): return model(batch).square().mean()
    def data(self): return torch.ones(10, 3)
"""
    )
    return path


def test_every_answer_a_program_reads_is_json_alone(shoestring, mine):
    """Estimates and plans: see below."""
    for question in (["recipes"], ["targets"], ["train", mine, "--run", mine.parent / "run"]):
        status, out, _ = shoestring(*question, "--json")
        assert status == 0
        json.loads(out)


def test_what_any_recipe_takes_is_listed_once_and_so_are_the_settings(shoestring):
    _, out, _ = shoestring("recipes")
    for name in ("subset=", "optimizer_states=own", "checkpointing=", "keep_checkpoints=2"):
        assert out.count(f"  {name}") == 1
    assert out.index("cloud") < out.index("any recipe") < out.index("subset=") < out.index("settings, which")


def test_an_estimate_has_the_documented_form(shoestring, mine):
    _, out, _ = shoestring(
        "estimate", mine, "--on", "t4", "--set", "micro_batch=2", "--set", "precision=fp16", "--json"
    )
    answer = json.loads(out)
    assert set(answer) == {
        "target", "settings", "parameters", "peak_bytes", "low_bytes", "high_bytes", "capacity_bytes", "fits", "parts",
        "allocated", "reserved",
    }  # fmt: skip
    assert answer["parameters"] == {"total": 4, "trainable": 4}
    assert (answer["settings"]["micro_batch"], answer["settings"]["precision"]) == (2, "fp16")
    assert sum(part["bytes"] for part in answer["parts"]) == answer["peak_bytes"]


def test_a_plan_has_the_documented_form(shoestring, mine):
    _, out, _ = shoestring("plan", mine, "--on", "kaggle-t4", "--json")
    answer = json.loads(out)
    wanted = {"verdict", "settings", "memory", "time", "sessions", "disk", "reasons", "alternatives"}
    assert wanted <= set(answer)
    assert {"update_seconds", "epoch_seconds", "total_seconds"} <= set(answer["time"])
    assert {"hours", "updates", "epochs"} == set(answer["sessions"][0])


def test_a_person_reads_the_verdict_the_parts_and_the_reasons(shoestring, mine):
    status, out, _ = shoestring("plan", mine, "--on", "kaggle-t4")
    assert status == 0
    assert out.splitlines()[1].strip() == "fits"
    for words in ("CUDA context", "14.56 GiB", "micro_batch 4", "because", "12 h", "█"):
        assert words in out


def test_a_run_is_trained_and_a_finished_one_is_left_alone(shoestring, mine):
    run = mine.parent / "run"
    status, out, err = shoestring("train", mine, "--run", run)
    assert (status, out.splitlines()[0]) == (0, "finished: all 2 epochs")
    assert "begins at update 0 of 6" in err
    before = (run / "events.jsonl").read_bytes()
    status, out, err = shoestring("train", mine, "--run", run)
    assert status == 0
    assert "is finished" in err
    assert (run / "events.jsonl").read_bytes() == before
    status, out, _ = shoestring("report", run)
    assert (status, out.strip()) == (0, str(run / "report.html"))


def test_a_run_continues_without_saying_its_options_again(shoestring, mine):
    run = mine.parent / "run"
    status, out, _ = shoestring("train", mine, "--run", run, "--set", "epochs=3", "--limit", "0.001s")
    assert status == 0
    assert out.startswith("paused: session limit")
    assert json.loads((run / "state.json").read_text())["status"] == "paused"
    status, out, _ = shoestring("train", mine, "--run", run, "--json")
    assert (json.loads(out)["status"], json.loads(out)["total_updates"]) == ("finished", 9)


WRONG = {
    "unknown option": (["plan", "temporal", "--set", "epoch=3"], "did you mean epochs?"),
    "two at once": (
        ["plan", "temporal", "--set", "epoch=3", "--set", "micro_batch=many"],
        "micro_batch=many: expected",
    ),
    "no pair": (["plan", "temporal", "--set", "epochs"], "write --set epochs=3"),
    "impossible": (["plan", "temporal", "--set", "keep_checkpoints=1"], "must be at least 2"),
    "unknown recipe": (["plan", "tempral"], "did you mean temporal?"),
    "no such file": (["train", "nope.py", "--run", "x"], "there is no file"),
    "unknown target": (["plan", "temporal", "--on", "kagle-t4"], "did you mean kaggle-t4?"),
    "unreadable data": (["plan", "temporal", "--set", "data=nope.csv"], "nope.csv"),
    "no duration": (["train", "temporal", "--run", "x", "--limit", "soon"], "write 90s, 20m or 1.5h"),
    "no size": (["train", "temporal", "--run", "x", "--disk", "much"], "write 15GB, 500MB or 1.5GiB"),
    "no run": (["report", "."], "is not a run directory"),
} | {
    f"an argument of {verb[0]}": (
        [*verb, "--set", "epochs=3", "--set", "on=t4"],
        "on=t4: on belongs to the command, not to a recipe",
    )
    for verb in (
        ["estimate", "temporal"],
        ["plan", "temporal"],
        ["check", "temporal"],
        ["train", "temporal", "--run", "x"],
        ["evaluate", "."],
    )
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_question_is_one_clear_error_with_a_hint(shoestring, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, words = WRONG[name]
    status, out, err = shoestring(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert words in err
    assert "Traceback" not in err
    assert not list(tmp_path.glob("x/plan.json"))


def test_a_directory_of_another_recipe_is_refused(shoestring, mine):
    run = mine.parent / "run"
    assert shoestring("train", mine, "--run", run)[0] == 0
    status, _, err = shoestring("train", "temporal", "--run", run)
    assert status == 2
    assert "is a run of mine.py, not of temporal" in err
    assert "hint: " in err


def test_a_run_keeps_its_options(shoestring, mine):
    run = mine.parent / "run"
    shoestring("train", mine, "--run", run, "--limit", "0.001s")
    status, _, err = shoestring("train", mine, "--run", run, "--set", "epochs=7")
    assert status == 2
    assert "epochs: the run has 2, asked for is 7" in err


def test_other_settings_continue_only_when_inexact_is_allowed(shoestring, mine):
    run = mine.parent / "run"
    shoestring("train", mine, "--run", run, "--limit", "0.001s")
    status, _, err = shoestring("train", mine, "--run", run, "--set", "micro_batch=2")
    assert status == 2
    assert "micro_batch: saved under 4, here 2" in err
    status, out, err = shoestring("train", mine, "--run", run, "--set", "micro_batch=2", "--allow-inexact")
    assert (status, out.splitlines()[0]) == (0, "finished: all 2 epochs")
    assert "not bit for bit" in err


def test_a_changed_recipe_file_continues_only_when_inexact_is_allowed(shoestring, mine):
    run = mine.parent / "run"
    shoestring("train", mine, "--run", run, "--limit", "0.001s")
    mine.write_text(mine.read_text() + "\n# changed\n")
    status, _, err = shoestring("train", mine, "--run", run)
    assert status == 2
    assert "recipe file: saved under" in err


def test_a_damaged_checkpoint_is_named_passed_over_and_training_goes_on(shoestring, mine):
    run = mine.parent / "run"
    shoestring("train", mine, "--run", run, "--set", "save_every_updates=1", "--set", "epochs=4")
    state = json.loads((run / "state.json").read_text())
    (run / "state.json").write_text(json.dumps(state | {"status": "running"}))
    newest = max((run / "checkpoints").glob("update-*")) / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"\x7f")
    status, out, err = shoestring("train", mine, "--run", run)
    assert status == 0
    assert f"damaged: {newest.parent.name}/model.safetensors" in err
    assert "continues at update 11 of 12" in err
    assert out.startswith("finished")


def test_a_failing_recipe_is_status_1_and_the_run_says_failed(mine, tmp_path):
    mine.write_text(mine.read_text().replace(".mean()", ".mean() * float('nan')"))
    ended = subprocess.run(
        [sys.executable, "-m", "shoestring", "train", mine, "--run", tmp_path / "run"], capture_output=True, text=True
    )
    assert ended.returncode == 1
    assert "error: the loss of update 1 is nan" in ended.stderr
    assert "Traceback" not in ended.stderr
    state = json.loads((tmp_path / "run" / "state.json").read_text())
    assert state["status"] == "failed"
    assert "nan" in state["reason"]


def test_help_names_every_verb_and_imports_nothing_heavy():
    script = (
        "import sys\nfrom shoestring.cli import main\nsys.argv = ['shoestring', '--help']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'pandas', 'matplotlib', 'safetensors', 'torchmetrics', 'transformers'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"}
    )
    assert ended.returncode == 0, ended.stderr
    for verb in ("recipes", "targets", "estimate", "plan", "train", "report"):
        assert f" {verb} " in ended.stdout
