"""Starting, planning and continuing runs."""

import dataclasses
import json
import os
import signal

import pytest
import torch

import shoestring
from shoestring.base.errors import RunError, UsageError
from shoestring.hardware import targets
from shoestring.recipe import near_misses
from shoestring.runs.train import session as training
from shoestring.runs.train import starting
from shoestring.training.run_directory.stored import resume_command
from shoestring.training.session.stop import SessionOver
from tests.mine import Mine


def read_plan(run):
    return json.loads((run / "plan.json").read_text())


def test_recipe_object_is_planned_trained_and_continued(tmp_path):
    paused = shoestring.train(Mine(), run=tmp_path / "run", limit_seconds=1e-9)
    assert (paused.status, paused.update) == ("paused", 0)
    finished = shoestring.train(Mine(), run=tmp_path / "run")
    assert (finished.status, finished.update) == ("finished", 9)
    assert shoestring.train(Mine(), run=tmp_path / "run") == finished
    assert shoestring.report(tmp_path / "run").name == "report.html"


def test_refused_command_tells_that_it_has_restored_another_run(tmp_path):
    shoestring.train(Mine(), run=tmp_path / "run", backup=tmp_path / "copies")
    with pytest.raises(UsageError, match="is a run of Mine, not of temporal") as error:
        shoestring.train("temporal", run=tmp_path / "other", from_url=tmp_path / "copies", size="tiny")
    assert "which this command has restored" in error.value.__notes__[0]
    with pytest.raises(UsageError) as error:  # of the run that is there by now
        shoestring.train("temporal", run=tmp_path / "other", from_url=tmp_path / "copies", size="tiny")
    assert not getattr(error.value, "__notes__", [])


def test_interrupted_planning_pauses_the_run(tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise SessionOver("session limit of 5.00 s")

    with monkeypatch.context() as patched:
        patched.setattr(starting, "make_plan", interrupt)
        paused = shoestring.train("temporal", run=tmp_path, size="tiny", epochs=1)
    assert (paused.status, paused.update, paused.reason) == ("paused", 0, "session limit of 5.00 s")
    (tmp_path / "planning.jsonl").write_text("")
    assert shoestring.train("temporal", run=tmp_path, size="tiny", epochs=1).status == "finished"
    assert not (tmp_path / "planning.jsonl").exists()


def test_run_that_began_with_names_of_other_frameworks_goes_on(tmp_path, monkeypatch, capsys):
    class Near(Mine):
        num_epochs = 7

    with monkeypatch.context() as patched:
        patched.setattr(near_misses, "NEAR_MISSES", {})  # as in the version that began it
        shoestring.train(Near(), run=tmp_path / "run", limit_seconds=1e-9)
    assert shoestring.train(Near(), run=tmp_path / "run").update == 9
    assert "these names of Near are ignored, as since the run was started: num_epochs" in capsys.readouterr().err
    assert shoestring.evaluate(tmp_path / "run", recipe=Near()).metrics
    with pytest.raises(UsageError, match="num_epochs: the name is epochs"):
        shoestring.train(Near(), run=tmp_path / "other")


def test_values_set_options_and_settings(tmp_path):
    outcome = shoestring.train(Mine(), run=tmp_path, epochs=1, micro_batch=2)
    assert outcome.total_updates == 3
    assert read_plan(tmp_path)["options"]["epochs"] == 1
    assert read_plan(tmp_path)["plan"]["settings"]["micro_batch"] == 2


def test_plan_for_another_device_is_replaced(tmp_path, capsys):
    plan = shoestring.plan(Mine(), on="kaggle-t4", epochs=2, precision="fp16", effective_batch=5)
    shoestring.train(Mine(), plan, run=tmp_path)
    message = capsys.readouterr().err
    assert "the plan is for NVIDIA T4, but this machine has" in message
    assert "precision fp16 -> fp32" in message
    stored = read_plan(tmp_path)
    assert (stored["options"]["epochs"], stored["options"]["effective_batch"]) == (2, 5)
    assert stored["plan"]["target"] == "local"


def test_plan_for_this_machine_is_used_unchanged(tmp_path, capsys):
    plan = shoestring.plan(Mine(), micro_batch=3)
    shoestring.train(Mine(), plan, run=tmp_path)
    assert "made a new plan" not in capsys.readouterr().err
    assert read_plan(tmp_path)["plan"] == plan.json()


def test_session_limit_of_the_platform_applies(tmp_path):
    shoestring.train(Mine(), run=tmp_path, on="kaggle-t4", allow_cpu=True)
    sessions = [line for line in (tmp_path / "events.jsonl").read_text().splitlines() if '"event": "session"' in line]
    assert json.loads(sessions[0])["limit_seconds"] == 12 * 3600


def test_a_target_with_a_gpu_is_refused_without_one(tmp_path):
    with pytest.raises(UsageError, match="this machine has no GPU") as raised:
        shoestring.train(Mine(), run=tmp_path / "a", on="kaggle-t4")
    assert "--allow-cpu" in raised.value.hint and not (tmp_path / "a").exists()
    shoestring.train(Mine(), run=tmp_path / "b", on="kaggle-t4", allow_cpu=True)
    assert shoestring.train(Mine(), run=tmp_path / "b", on="kaggle-t4").status == "finished"  # planned for this CPU


def test_run_that_does_not_fit_is_not_started(tmp_path, monkeypatch):
    local = targets.find("local")
    small_target = dataclasses.replace(local, device=dataclasses.replace(local.device, memory_bytes=2**20))
    monkeypatch.setattr(targets, "find", lambda name: small_target)
    with pytest.raises(RunError, match="does not fit"):
        shoestring.train(Mine(), run=tmp_path)
    assert not (tmp_path / "plan.json").exists()


def write_bars(path, price=100.0):
    rows = [
        f"{2000 + n // 336}-{n // 28 % 12 + 1:02}-{n % 28 + 1:02},{price},{price * 2},{price / 2},{price},10"
        for n in range(900)
    ]
    path.write_text("\n".join(["time,open,high,low,close,volume", *rows]))


def test_moved_run_continues_with_moved_data(tmp_path, monkeypatch):
    values = {"size": "tiny", "epochs": 2, "threshold": 0.0}
    (tmp_path / "here").mkdir()
    write_bars(tmp_path / "here" / "bars.csv")
    monkeypatch.chdir(tmp_path / "here")
    paused = shoestring.train("temporal", run="run", limit_seconds=1e-9, data="bars.csv", **values)
    assert paused.status == "paused"
    (tmp_path / "here").rename(tmp_path / "there")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"bars\.csv"):
        shoestring.train("temporal", run="there/run")
    write_bars(tmp_path / "other.csv", price=50.0)
    with pytest.raises(UsageError, match="data: its files have changed since the checkpoint"):
        shoestring.train("temporal", run="there/run", data="other.csv")
    assert shoestring.train("temporal", run="there/run", data="there/bars.csv").status == "finished"


def test_gpu_that_torch_cannot_use_is_an_error(tmp_path, monkeypatch):
    t4 = targets.find("t4")
    monkeypatch.setattr(targets, "find", lambda name: dataclasses.replace(t4, name="local"))
    with pytest.raises(UsageError, match=r"has NVIDIA T4, but this torch .* cannot use it"):
        shoestring.train(Mine(), run=tmp_path)


def test_damaged_plan_is_an_error(tmp_path):
    shoestring.train(Mine(), run=tmp_path, limit_seconds=1e-9)
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(UsageError, match="lacks digest, options, plan, recipe, reference"):
        shoestring.train(Mine(), run=tmp_path)


def test_recipe_without_data_is_not_started(tmp_path):
    class RecipeWithoutData(Mine):
        data = None

    with pytest.raises(UsageError, match="has no data"):
        shoestring.train(RecipeWithoutData(), run=tmp_path)
    assert not (tmp_path / "plan.json").exists()


def test_parameter_names_are_no_options():
    from shoestring.recipe.finding import choose

    with pytest.raises(UsageError, match="run: unknown"):
        choose(Mine(), {"run": "x"})


def test_settings_that_exclude_each_other_start_no_run(tmp_path):
    values = {"size": "tiny", "gpus": 2, "sharding": "zero2", "compile": "yes"}
    with pytest.raises(UsageError, match="does not support") as caught:
        shoestring.train("temporal", on="cpu", run=tmp_path, **values)
    assert [problem.partition(":")[0] for problem in caught.value.problems] == ["compile=yes"]
    assert not (tmp_path / "plan.json").exists()


def test_expandable_segments_are_set_by_environment_variable(monkeypatch, capsys):
    name = "PYTORCH_CUDA_ALLOC_CONF"
    monkeypatch.setenv(name, "max_split_size_mb:64")
    monkeypatch.delattr(torch._C, "_accelerator_setAllocatorSettings", raising=False)
    training._enable_expandable_segments()
    assert os.environ[name] == "max_split_size_mb:64,expandable_segments:True"
    assert "torch was imported before" in capsys.readouterr().err
    training._enable_expandable_segments()
    assert os.environ[name].count("expandable") == 1


def test_requested_disk_limit_replaces_the_platforms(tmp_path):
    with pytest.raises(RunError, match=r"disk limit of the run is 9\.77 KiB") as raised:
        shoestring.train(Mine(), run=tmp_path, on="kaggle-t4", allow_cpu=True, disk_bytes=10_000)
    assert any(problem.startswith("2 full checkpoints: ") for problem in raised.value.problems)
    assert "--disk" in raised.value.hint
    # With this limit the first checkpoint fits, but not those with the optimizer's state.
    disk = read_plan(tmp_path)["plan"]["disk"]
    with pytest.raises(RunError, match="the run needs"):
        shoestring.train(Mine(), run=tmp_path, disk_bytes=disk["peak_bytes"] - 1)
    assert shoestring.train(Mine(), run=tmp_path, disk_bytes=2 * 10**6 + disk["peak_bytes"]).status == "finished"


def test_next_command_names_the_target(tmp_path):
    shoestring.train(Mine(), run=tmp_path, on="kaggle-t4", allow_cpu=True, limit_seconds=1e-9)
    assert json.loads((tmp_path / "state.json").read_text())["next"].endswith("--on kaggle-t4")
    assert resume_command("temporal", tmp_path, "kaggle-t4", allow_cpu=True).endswith("--on kaggle-t4 --allow-cpu")


def test_signal_while_reading_data_pauses_the_run(tmp_path, capsys):
    class Slow(Mine):
        def data(self):
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError("the signal did not stop the session")

    run = tmp_path / "run"
    shoestring.train(Mine(), run=run, limit_seconds=1e-9)
    assert "no update fit into this session" in capsys.readouterr().err
    plan = read_plan(run)
    (run / "plan.json").write_text(json.dumps(plan | {"recipe": "Slow"}))
    outcome = shoestring.train(Slow(), run=run, limit_seconds=1000)
    assert "no update fit into this session" not in capsys.readouterr().err
    assert (outcome.status, outcome.reason, outcome.update, outcome.total_updates) == ("paused", "SIGTERM", 0, 9)
