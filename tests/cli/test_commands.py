"""The command line: its output for users and for programs, and its errors."""

import json
import os
import subprocess
import sys

import pytest

from shoestring import api
from shoestring.cli import commands
from shoestring.hardware.targets import machines
from shoestring.version import __version__
from tests.hardware.measured_files import GPU, write


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


def test_json_is_the_only_output(run_command, mine):
    """Estimates and plans have tests of their own below. What the recipe prints goes to standard error."""
    mine.write_text(mine.read_text().replace("def data(self):", "def data(self): print('the data');"))
    for command in (["recipes"], ["targets"], ["train", mine, "--run", mine.parent / "run"]):
        status, out, err = run_command(*command, "--json")
        assert status == 0
        json.loads(out)
    assert "the data" in err


def test_recipes_has_one_line_for_each(run_command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    _, out, _ = run_command("recipes")
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[: lines.index("")]] == [recipe["name"] for recipe in api.recipes()]


def test_options_of_a_recipe_are_in_groups(run_command):
    _, out, _ = run_command("recipes", "temporal")
    names = ("size=full", "subset=", "horizon=8", "optimizer_states=own", "checkpointing=", "keep_checkpoints=")
    assert [out.count(f"  {name}") for name in names] == [1] * len(names)
    positions = [out.index(f"  {name}") for name in names]
    assert positions == sorted(positions)


def test_options_of_a_recipe_file_are_listed(run_command, mine):
    _, out, _ = run_command("recipes", mine, "--json")
    options = {option["name"]: option["default"] for option in json.loads(out)["options"]}
    assert (options["epochs"], options["effective_batch"]) == (2, 4)


def test_estimate_has_the_documented_keys(run_command, mine):
    _, out, _ = run_command(
        "estimate", mine, "--on", "t4", "--set", "micro_batch=2", "--set", "precision=fp16", "--json"
    )
    answer = json.loads(out)
    assert set(answer) == {
        "target", "settings", "parameters", "peak_bytes", "low_bytes", "high_bytes", "capacity_bytes", "fits", "parts",
        "allocated", "reserved", "loading_bytes", "notes",
    }  # fmt: skip
    assert answer["parameters"] == {"total": 4, "trainable": 4}
    assert (answer["settings"]["micro_batch"], answer["settings"]["precision"]) == (2, "fp16")
    assert sum(part["bytes"] for part in answer["parts"]) == answer["peak_bytes"]


def test_plan_names_the_file_of_its_rates(run_command, mine, tmp_path):
    path = write(tmp_path, GPU)
    for arguments in (("--on", path), ("--on", "kaggle-t4", "--calibrate", path)):
        status, out, _ = run_command("plan", mine, *arguments)
        assert status == 0 and "from kernels measured on NVIDIA T4 on 2026-11-24" in out
    _, out, _ = run_command("plan", mine, "--on", "p100", "--calibrate", path, "--json")
    assert any("the measurement was on NVIDIA T4" in reason for reason in json.loads(out)["reasons"])
    status, _, err = run_command("plan", mine, "--on", tmp_path / "nothing.json")
    assert status == 2 and "cannot be read" in err


def test_plan_has_the_documented_keys(run_command, mine):
    _, out, _ = run_command("plan", mine, "--on", "kaggle-t4", "--json")
    answer = json.loads(out)
    keys = {"verdict", "settings", "memory", "time", "sessions", "disk", "reasons", "alternatives"}
    assert keys <= set(answer)
    assert {"update_seconds", "epoch_seconds", "total_seconds"} <= set(answer["time"])
    assert {"hours", "updates", "epochs", "parts"} == set(answer["sessions"][0])


def test_plan_begins_with_answer_and_command(run_command, mine, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(mine.parent)
    summary, full = (run_command("plan", "mine.py", "--on", "kaggle-t4", *flags)[1] for flags in ([], ["--full"]))
    assert len(summary.splitlines()) <= 25
    for out in (summary, full):
        sentence, _, command = " ".join(line.strip() for line in out.split("\n\n")[0].splitlines()).partition("type ")
        assert sentence.startswith("mine.py fits on kaggle-t4 (NVIDIA T4, 14.56 GiB; 4 parameters) and takes about")
        assert command == "shoestring kaggle start mine.py --run runs/mine --on kaggle-t4"
        for words in ("CUDA context", "14.56 GiB", "micro_batch 4", "12 h", "█"):
            assert words in out
    assert "To train it there, type" in run_command("plan", "mine.py", "--on", "colab-t4")[1]
    for words in ("reasons", "alternatives", "out of memory", "full run"):
        assert f"\n{words}  " in full and f"\n{words}  " not in summary


def test_plan_for_kaggle_compares_its_machines_and_ends_with_a_command(run_command, mine, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(mine.parent)
    _, out, _ = run_command("plan", "mine.py", "--on", "kaggle")
    lines = out.splitlines()
    assert [line.split()[:2] for line in lines[1:8]] == [[name, "fits"] for name in machines("kaggle")]
    text = " ".join(out.split())
    every, some = "kaggle-t4x2, kaggle-t4", "kaggle-l4x4, kaggle-l4, kaggle-rtxpro6000, kaggle-a100, kaggle-h100"
    first = f"Of the machines that every account has ({every}), kaggle-t4x2 finishes first: "
    second = f"Of the machines that depend on the account ({some}), kaggle-"
    assert first in text and "in 1 session, within one week's quota of 30 GPU hours." in text
    assert text.index(first) < text.index(second)
    assert lines[-2:] == ["Type", "  shoestring kaggle start mine.py --run runs/mine --on kaggle-t4x2"]
    _, out, _ = run_command("plan", "mine.py", "--on", "kaggle", "--for", "predict", "--json")
    assert [plan["target"] for plan in json.loads(out)] == list(machines("kaggle"))


@pytest.mark.slow
def test_plan_without_fit_names_changes(run_command, mine, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    mine.write_text(mine.read_text().replace("nn.Linear(3, 1)", "nn.Linear(3, 3000000000)"))
    monkeypatch.chdir(mine.parent)
    _, out, _ = run_command("plan", "mine.py", "--on", "t4", "--set", "micro_batch=4")
    assert out.startswith("mine.py does not fit on t4") and "of GPU memory, but 14.56 GiB is available" in " ".join(
        out.split()
    )
    assert "What would be enough is listed below." in " ".join(out.split()) and "several together" not in out
    assert "to make it fit  GPU memory: a device with" in out and len(out.splitlines()) <= 25
    _, out, _ = run_command("plan", "temporal", "--on", "t4", "--disk", "28MiB", "--set", "light_weights=own")
    assert "temporal does not fit on t4" in out and "disk" in out
    command = "  shoestring plan temporal --on t4 --disk 29.360128MB --set light_weights=fp16"
    assert command in out.splitlines()
    monkeypatch.setenv("COLUMNS", "40")
    _, out, _ = run_command("plan", "temporal", "--on", "t4", "--disk", "28MiB", "--set", "light_weights=own")
    assert command in out.splitlines()


def test_finished_run_is_not_trained_again(run_command, mine):
    run = mine.parent / "run"
    status, out, err = run_command("train", mine, "--run", run)
    assert (status, out.splitlines()[0]) == (0, "finished: all 2 epochs")
    assert "begins at update 0 of 6" in err
    before = (run / "events.jsonl").read_bytes()
    status, out, err = run_command("train", mine, "--run", run)
    assert status == 0
    assert "is finished" in err
    assert (run / "events.jsonl").read_bytes() == before
    status, out, _ = run_command("report", run)
    assert (status, out.strip()) == (0, str(run / "report.html"))
    page = mine.parent / "page.html"
    status, out, err = run_command("watch", run, "--page", page)
    assert (status, out.split()[:2], page.is_file()) == (0, ["mine.py", "finished"], True)
    assert f"the page is {page.as_uri()}" in err
    _, out, _ = run_command("watch", run, "--once", "--json")
    assert (json.loads(out)["status"], json.loads(out)["update"]) == ("finished", 6)


def test_run_continues_with_its_stored_options(run_command, mine):
    run = mine.parent / "run"
    status, out, _ = run_command("train", mine, "--run", run, "--set", "epochs=3", "--limit", "0.001s")
    assert status == 0
    assert out.startswith("paused: session limit")
    assert json.loads((run / "state.json").read_text())["status"] == "paused"
    status, out, _ = run_command("train", mine, "--run", run, "--json")
    assert (json.loads(out)["status"], json.loads(out)["total_updates"]) == ("finished", 9)


INVALID = (
    {
        "unknown option": (["plan", "temporal", "--set", "epoch=3"], "did you mean epochs?"),
        "two problems": (
            ["plan", "temporal", "--set", "epoch=3", "--set", "micro_batch=many"],
            "micro_batch=many: expected",
        ),
        "no value": (["plan", "temporal", "--set", "epochs"], "write --set epochs=3"),
        "too small": (["plan", "temporal", "--set", "keep_checkpoints=0"], "must be at least 1"),
        "unknown recipe": (["plan", "tempral"], "did you mean temporal?"),
        "no such file": (["train", "nope.py", "--run", "x"], "there is no file"),
        "unknown target": (["plan", "temporal", "--on", "kagle-t4"], "did you mean kaggle-t4?"),
        "unreadable data": (["plan", "temporal", "--set", "data=nope.csv"], "nope.csv"),
        "invalid duration": (["train", "temporal", "--run", "x", "--limit", "soon"], "write 90s, 20m or 1.5h"),
        "invalid size": (["train", "temporal", "--run", "x", "--disk", "much"], "write 15GB, 500MB or 1.5GiB"),
        "no run": (["report", "."], "is not a run directory"),
    }
    | {
        f"{name} in {verb[0]}": ([*verb, "--on", name], words)
        for verb in (
            ["estimate", "temporal"],
            ["plan", "temporal"],
            ["check", "temporal"],
            ["train", "temporal", "--run", "x"],
            ["notebook", "temporal", "--out", "x"],
            ["kaggle", "start", "temporal", "--run", "x"],
            ["kaggle", "start", "temporal", "--run", "x", "--dry-run"],
        )
        for name, words in {
            "kaggle-p100": "no kernels for a P100 (sm_60)",
            "kaggle-tpuv5e8": "TPUs are not supported",
            "kaggle": "available: kaggle-t4x2, kaggle-t4, kaggle-l4x4",
        }.items()
        if (name, verb[0]) != ("kaggle", "plan")
    }
    | {
        f"an argument of {verb[0]}": (
            [*verb, "--set", "epochs=3", "--set", "on=t4"],
            "on=t4: on is an option of the command, not of a recipe",
        )
        for verb in (
            ["estimate", "temporal"],
            ["plan", "temporal"],
            ["check", "temporal"],
            ["train", "temporal", "--run", "x"],
            ["evaluate", "."],
        )
    }
)


@pytest.mark.parametrize("name", INVALID)
def test_invalid_usage_is_one_error_with_a_hint(run_command, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, words = INVALID[name]
    status, out, err = run_command(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert words in err
    assert "Traceback" not in err
    assert not {path.name for path in tmp_path.glob("x/*")} - {"lock"}


def test_run_of_another_recipe_is_refused(run_command, mine):
    run = mine.parent / "run"
    assert run_command("train", mine, "--run", run)[0] == 0
    status, _, err = run_command("train", "temporal", "--run", run)
    assert status == 2
    assert "is a run of mine.py, not of temporal" in err
    assert "hint: " in err


def test_options_of_a_run_cannot_change(run_command, mine):
    run = mine.parent / "run"
    run_command("train", mine, "--run", run, "--limit", "0.001s")
    status, _, err = run_command("train", mine, "--run", run, "--set", "epochs=7")
    assert status == 2
    assert "epochs: the run was started with 2, but 7 was requested" in err


def test_other_settings_need_allow_inexact_once(run_command, mine):
    """A refused command leaves the record as it was, and settings that were accepted are those of the run."""
    run = mine.parent / "run"
    run_command("train", mine, "--run", run, "--limit", "0.001s")
    state, ledger = (run / "state.json").read_text(), (run / "ledger.json").read_text()
    status, _, err = run_command("train", mine, "--run", run, "--set", "micro_batch=2")
    assert status == 2
    assert "micro_batch: saved with 4, now 2" in err
    assert (run / "state.json").read_text() == state and (run / "ledger.json").read_text() == ledger
    limited = ("--set", "micro_batch=2", "--allow-inexact", "--limit", "0.001s")
    status, _, err = run_command("train", mine, "--run", run, *limited)
    assert status == 0 and "not bit-identical" in err
    status, out, _ = run_command("train", mine, "--run", run)
    assert (status, out.splitlines()[0]) == (0, "finished: all 2 epochs")


def test_changed_recipe_file_needs_allow_inexact(run_command, mine):
    run = mine.parent / "run"
    run_command("train", mine, "--run", run, "--limit", "0.001s")
    mine.write_text(mine.read_text() + "\n# changed\n")
    status, _, err = run_command("train", mine, "--run", run)
    assert status == 2
    assert "recipe file: changed since the checkpoint" in err


def test_damaged_checkpoint_is_named_and_skipped(run_command, mine):
    run = mine.parent / "run"
    run_command("train", mine, "--run", run, "--set", "save_every_updates=1", "--set", "epochs=4")
    state = json.loads((run / "state.json").read_text())
    (run / "state.json").write_text(json.dumps(state | {"status": "running"}))
    newest = max((run / "checkpoints").glob("update-*")) / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"\x7f")
    status, out, err = run_command("train", mine, "--run", run)
    assert status == 0
    assert f"damaged: {newest.parent.name}/model.safetensors" in err
    assert "continues at update 11 of 12" in err
    assert out.startswith("finished")


@pytest.mark.slow
def test_failing_recipe_ends_with_status_1(mine, tmp_path):
    mine.write_text(mine.read_text().replace(".mean()", ".mean() * float('nan')"))
    process = subprocess.run(
        [sys.executable, "-m", "shoestring", "train", mine, "--run", tmp_path / "run"], capture_output=True, text=True
    )
    assert process.returncode == 1
    assert "error: the loss of update 1 is nan" in process.stderr
    assert "Traceback" not in process.stderr
    state = json.loads((tmp_path / "run" / "state.json").read_text())
    assert state["status"] == "failed"
    assert "nan" in state["reason"]


def test_the_version_is_printed(run_command):
    assert run_command("--version") == (0, f"shoestring {__version__}\n", "")


def test_help_imports_nothing_heavy():
    script = (
        "import sys\nfrom shoestring.cli.commands import main\nsys.argv = ['shoestring', '--help']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'pandas', 'matplotlib', 'safetensors', 'torchmetrics', 'transformers'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"}
    )
    assert process.returncode == 0, process.stderr
    for verb in ("recipes", "targets", "estimate", "plan", "train", "report"):
        assert f" {verb} " in process.stdout


@pytest.mark.parametrize("verb", [command.callback.__name__ for command in commands.app.registered_commands])
def test_help_of_a_command_ends_with_two_examples(run_command, monkeypatch, verb):
    monkeypatch.setenv("COLUMNS", "120")
    status, out, _ = run_command(verb, "--help")
    lines = [line.strip() for line in out.splitlines() if line.strip()]
    assert status == 0 and lines[-3] == "Examples:"
    assert all(line.startswith(f"shoestring {verb}") for line in lines[-2:])
