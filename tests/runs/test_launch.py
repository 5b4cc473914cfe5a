"""From a question to a run."""

import dataclasses
import json
import os
import signal

import pytest

import shoestring
from shoestring.errors import RunError, UsageError
from shoestring.hardware import targets
from shoestring.runs import launch
from tests.mine import Mine


def plan_of(run):
    return json.loads((run / "plan.json").read_text())


def test_from_python_a_live_object_is_planned_trained_and_continued(tmp_path):
    paused = shoestring.train(Mine(), run=tmp_path / "run", limit_seconds=1e-9)
    assert (paused.status, paused.update) == ("paused", 0)
    finished = shoestring.train(Mine(), run=tmp_path / "run")
    assert (finished.status, finished.update) == ("finished", 9)
    assert shoestring.train(Mine(), run=tmp_path / "run") == finished
    assert shoestring.report(tmp_path / "run").name == "report.html"


def test_values_go_to_options_and_settings_alike(tmp_path):
    outcome = shoestring.train(Mine(), run=tmp_path, epochs=1, micro_batch=2)
    assert outcome.total_updates == 3
    assert plan_of(tmp_path)["options"]["epochs"] == 1
    assert plan_of(tmp_path)["plan"]["settings"]["micro_batch"] == 2


def test_a_plan_for_another_device_is_made_anew_with_the_same_options_and_said(tmp_path, capsys):
    plan = shoestring.plan(Mine(), on="kaggle-t4", epochs=2, precision="fp16", effective_batch=5)
    shoestring.train(Mine(), plan, run=tmp_path)
    told = capsys.readouterr().err
    assert "planned for NVIDIA T4, this is" in told
    assert "precision fp16 -> fp32" in told
    stored = plan_of(tmp_path)
    assert (stored["options"]["epochs"], stored["options"]["effective_batch"]) == (2, 5)
    assert stored["plan"]["target"] == "local"


def test_a_plan_for_this_machine_is_run_as_it_stands(tmp_path, capsys):
    plan = shoestring.plan(Mine(), micro_batch=3)
    shoestring.train(Mine(), plan, run=tmp_path)
    assert "planned anew" not in capsys.readouterr().err
    assert plan_of(tmp_path)["plan"] == plan.json()


def test_a_platform_lends_its_session_limit(tmp_path):
    shoestring.train(Mine(), run=tmp_path, on="kaggle-t4")
    sessions = [line for line in (tmp_path / "events.jsonl").read_text().splitlines() if '"event": "session"' in line]
    assert json.loads(sessions[0])["limit_seconds"] == 12 * 3600


def test_what_does_not_fit_is_not_begun(tmp_path, monkeypatch):
    local = targets.find("local")
    tiny = dataclasses.replace(local, device=dataclasses.replace(local.device, memory_bytes=2**20))
    monkeypatch.setattr(targets, "find", lambda name: tiny)
    with pytest.raises(RunError, match="does not fit"):
        shoestring.train(Mine(), run=tmp_path)
    assert not (tmp_path / "plan.json").exists()


def bars(path, price=100.0):
    rows = [
        f"{2000 + n // 336}-{n // 28 % 12 + 1:02}-{n % 28 + 1:02},{price},{price * 2},{price / 2},{price},10"
        for n in range(900)
    ]
    path.write_text("\n".join(["time,open,high,low,close,volume", *rows]))


def test_a_run_that_was_copied_continues_with_its_data_elsewhere(tmp_path, monkeypatch):
    values = {"size": "tiny", "epochs": 2, "threshold": 0.0}
    (tmp_path / "here").mkdir()
    bars(tmp_path / "here" / "bars.csv")
    monkeypatch.chdir(tmp_path / "here")
    paused = shoestring.train("temporal", run="run", limit_seconds=1e-9, data="bars.csv", **values)
    assert paused.status == "paused"
    (tmp_path / "here").rename(tmp_path / "there")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"bars\.csv"):
        shoestring.train("temporal", run="there/run")
    bars(tmp_path / "other.csv", price=50.0)
    with pytest.raises(UsageError, match="content of data: saved under"):
        shoestring.train("temporal", run="there/run", data="other.csv")
    assert shoestring.train("temporal", run="there/run", data="there/bars.csv").status == "finished"


def test_a_gpu_that_this_torch_cannot_use_is_an_error_not_a_slow_run(tmp_path, monkeypatch):
    t4 = targets.find("t4")
    monkeypatch.setattr(targets, "find", lambda name: dataclasses.replace(t4, name="local"))
    with pytest.raises(UsageError, match=r"has NVIDIA T4, but this torch .* cannot use it"):
        shoestring.train(Mine(), run=tmp_path)


def test_a_damaged_plan_is_one_error(tmp_path):
    shoestring.train(Mine(), run=tmp_path, limit_seconds=1e-9)
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(UsageError, match="lacks digest, options, plan, recipe, reference"):
        shoestring.train(Mine(), run=tmp_path)


def test_a_recipe_without_data_is_not_begun(tmp_path):
    class Half(Mine):
        data = None

    with pytest.raises(UsageError, match="has no data"):
        shoestring.train(Half(), run=tmp_path)
    assert not (tmp_path / "plan.json").exists()


def test_names_that_are_also_parameters_can_be_set_from_the_command_line():
    from shoestring.recipe.finding import choose

    with pytest.raises(UsageError, match="run: unknown"):
        choose(Mine(), {"run": "x"})


def test_settings_that_can_only_be_estimated_begin_nothing(tmp_path):
    with pytest.raises(UsageError, match="training does not support these settings") as refused:
        shoestring.train(Mine(), run=tmp_path, sharding="zero1")
    assert len(refused.value.problems) == 1
    assert not (tmp_path / "plan.json").exists()


def test_expandable_segments_are_asked_of_torch_by_the_variable_it_reads(monkeypatch, capsys):
    name = "PYTORCH_CUDA_ALLOC_CONF"
    monkeypatch.setenv(name, "max_split_size_mb:64")
    launch._expandable_segments()
    assert os.environ[name] == "max_split_size_mb:64,expandable_segments:True"
    assert "torch was imported before" in capsys.readouterr().err
    launch._expandable_segments()
    assert os.environ[name].count("expandable") == 1


def test_a_disk_that_is_given_counts_instead_of_the_platforms(tmp_path):
    with pytest.raises(RunError, match=r"the run may take 9\.77 KiB"):
        shoestring.train(Mine(), run=tmp_path, on="kaggle-t4", disk_bytes=10_000)


def test_the_next_step_names_the_platform_whose_limits_count(tmp_path):
    shoestring.train(Mine(), run=tmp_path, on="kaggle-t4", limit_seconds=1e-9)
    assert json.loads((tmp_path / "state.json").read_text())["next"].endswith("--on kaggle-t4")


def test_a_session_that_ends_while_data_is_read_is_paused(tmp_path):
    class Slow(Mine):
        def data(self):
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError("nobody stopped it")

    run = tmp_path / "run"
    shoestring.train(Mine(), run=run, limit_seconds=1e-9)
    plan = plan_of(run)
    (run / "plan.json").write_text(json.dumps(plan | {"recipe": "Slow"}))
    outcome = shoestring.train(Slow(), run=run)
    assert (outcome.status, outcome.reason, outcome.update, outcome.total_updates) == ("paused", "SIGTERM", 0, 9)
