"""Plans of real recipes, traced."""

import dataclasses
import io
import json
import shlex

import pytest
import torch
from rich.console import Console
from torch import nn

import shoestring
from shoestring.answers import plan as answer
from shoestring.answers.renderers.terminal.document import render
from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.hardware import targets
from shoestring.hardware.prices import PRICES
from shoestring.planning.comparison import compare
from shoestring.planning.counts import Counts
from shoestring.planning.estimate.calibration import Calibration
from shoestring.planning.estimate.span import Span
from shoestring.planning.estimate.spread import Spread
from shoestring.planning.phases import phases
from shoestring.planning.planner import make_plan
from shoestring.planning.sessions import Work
from shoestring.planning.trace import child_process
from shoestring.recipe.finding import find, load
from tests.planning.trace.sample_recipes import Mlp

ONE = Settings(micro_batch=10, precision="fp32", checkpointing="no")


@pytest.fixture(scope="module")
def temporal():
    return shoestring.plan("temporal", on="kaggle-t4")


def test_json_has_all_results_of_a_plan(temporal):
    result = json.loads(json.dumps(temporal.json(), allow_nan=False))
    assert result["verdict"] == "fits"
    assert result["settings"]["micro_batch"] == 256
    assert result["memory"]["parameters"] == {"total": 625_726, "trainable": 625_726}
    memory, time, disk = result["memory"], result["time"], result["disk"]
    assert sum(part["bytes"] for part in memory["parts"]) == memory["peak_bytes"]
    assert memory["low_bytes"] <= memory["peak_bytes"] <= memory["high_bytes"] <= memory["capacity_bytes"]
    assert all(part["source"] for part in memory["parts"])
    for name in ("update_seconds", "epoch_seconds", "total_seconds"):
        assert time[f"low_{name}"] < time[name] < time[f"high_{name}"]
    assert time["total_seconds"] == pytest.approx(50 * time["epoch_seconds"])
    # Weights, two moments and steps in fp32.
    assert disk["full_checkpoint_bytes"] == pytest.approx(625_726 * 12, rel=0.02)
    assert disk["peak_bytes"] < disk["limit_bytes"] == 19.5e9
    assert sum(session["updates"] for session in result["sessions"]) == 150
    assert any("micro_batch" in reason for reason in result["reasons"])
    assert any("precision" in reason for reason in result["reasons"])


def test_plan_says_what_the_image_of_the_platform_lacks(temporal, monkeypatch):
    assert temporal.json()["image"]["lacks"] == [] and "lacks" not in str(temporal)
    recipe = load(Mlp(), {"effective_batch": 10, "optimizer_states": "8bit"})
    plan = make_plan(recipe, targets.find("kaggle-t4"), ONE)
    image = json.loads(json.dumps(plan.json()))["image"]
    assert (image["platform"], image["python"], image["command"]) == (
        "kaggle", "3.12", "pip install bitsandbytes==0.50.2",
    )  # fmt: skip
    (package,) = image["lacks"]
    assert package == {
        "name": "bitsandbytes", "minimum": "0.50", "below": "1", "installed": "", "version": "0.50.2",
        "required_by": ["shoestring[bitsandbytes]"],
    }  # fmt: skip
    for text in (" ".join(str(plan).split()), plan._repr_html_()):
        assert "lacks bitsandbytes: kaggle start and the notebook bring it; by hand: pip install bitsandbytes" in text
    assert len(str(plan).splitlines()) <= 25
    assert make_plan(recipe, targets.find("t4"), ONE).json()["image"] is None
    # In a session of Kaggle it may be installed by now.
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    assert make_plan(recipe, targets.find("kaggle-t4"), ONE).image is None


def test_plan_has_the_notes_of_the_recipe():
    class SyntheticRecipe:
        epochs = effective_batch = 2

        def model(self):
            return nn.Linear(4, 4)

        def batch(self, size):
            return torch.zeros(size, 4)

        def loss(self, model, batch):
            return model(batch).square().mean()

        def data(self):
            self.note = "the data are synthetic <zeros>"
            return torch.zeros(8, 4)

        def notes(self):
            return [self.note]

    plan = make_plan(find(SyntheticRecipe()), targets.find("t4"), Settings())
    assert plan.json()["notes"] == ["the data are synthetic <zeros>"]
    assert "the data are synthetic &lt;zeros&gt;" in plan._repr_html_()
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(render(answer.document(plan)))
    assert "the data are synthetic <zeros>" in console.export_text()


def test_calibration_of_another_device_is_reported_but_not_used():
    spread = Spread(low=0.9, high=1.1, source="30 updates measured in first (legal): 2.00 times the prediction")
    calibration = Calibration(device="NVIDIA T4", factor=2.0, spread=spread, input_seconds=0.0, save_rate=None)
    target = targets.find("kaggle-t4")
    plan = make_plan(find(Epochs()), target, Settings())
    predicted = plan.time.predicted.update_seconds
    calibrated = make_plan(find(Epochs()), target, plan.settings, calibration=calibration)
    assert calibrated.time.predicted.update_seconds == pytest.approx(2 * predicted)
    assert f"time: the prediction is calibrated with {spread.source}" in calibrated.reasons
    calibration = dataclasses.replace(calibration, device="an A10")
    uncalibrated = make_plan(find(Epochs()), target, plan.settings, calibration=calibration)
    assert uncalibrated.time.predicted.update_seconds == pytest.approx(predicted)
    reason = "the measurement was on an A10, not on NVIDIA T4"
    assert any(reason in line for line in uncalibrated.reasons)


@pytest.mark.slow
def test_plans_are_reproducible(temporal):
    assert shoestring.plan("temporal", on="kaggle-t4").json() == temporal.json()


def test_json_has_host_memory_quota_and_price(temporal):
    result = temporal.json()
    assert result["host"]["fits"] and result["host"]["limit_bytes"] > 31 * 2**30
    assert sum(part["bytes"] for part in result["host"]["parts"]) == result["host"]["peak_bytes"]
    assert sum(part["bytes"] for part in result["disk"]["parts"]) == result["disk"]["peak_bytes"]
    assert result["weeks"] == [{"week": 1, "sessions": 1, "hours": pytest.approx(temporal.hours)}]
    assert result["cost"]["usd"] == 0 and result["cost"]["price"]["source"]
    assert result["binding"] in {limit["name"] for limit in result["limits"]}
    assert result["changes"] == []


def test_plan_lists_the_fallbacks_of_the_engine(temporal):
    first, *_, last = temporal.fallbacks
    assert first == "micro_batch is reduced to 128, 64, 32, 16, 8, 4, 2, 1"
    assert "error" in last


def test_phases_have_shell_commands(temporal):
    commands = {phase.name: shlex.split(phase.command) for phase in temporal.phases}
    assert commands["full run"] == [
        "shoestring",
        "kaggle",
        "start",
        "temporal",
        "--run",
        "runs/temporal",
        "--on",
        "kaggle-t4",
    ]
    assert commands["smoke test"][-2:] == ["--set", "epochs=1"]
    assert "pilot" not in commands  # the full run takes minutes


def test_plan_of_a_run_with_an_average_that_ends_early():
    """The largest number of updates decides time and sessions; the average is in memory and in checkpoints."""
    plain, limited = (
        make_plan(load(Mlp(), {"effective_batch": 10, "epochs": 3, **options}), targets.find("kaggle-t4"), ONE)
        for options in ({}, {"max_updates": 8, "ema": 0.9})
    )
    assert (sum(session.updates for session in plain.sessions), plain.sessions[0].epochs) == (21, 3)
    assert (sum(session.updates for session in limited.sessions), limited.sessions[0].epochs) == (8, 8 / 7)
    predicted = limited.time.predicted
    assert predicted.total_seconds == pytest.approx(8 * predicted.update_seconds)
    averaged = 4 * plain.facts.parameters_trainable
    (part,) = (part for part in limited.memory.parts if part.name == "averaged weights")
    assert averaged <= part.bytes < averaged + 512 * 6
    assert limited.disk.full_checkpoint_bytes == plain.disk.full_checkpoint_bytes + averaged


HALF_A_SECOND = Work(update={"forward": Span.exactly(0.5)})


def test_pilot_of_a_run_with_a_largest_number_of_updates():
    planned = phases(
        find("temporal").replace(max_updates=40_000),
        Settings(micro_batch=64),
        targets.find("t4"),
        counts=Counts(samples={"train": 100_000}, per_epoch=391, total=40_000, epochs=103),
        work=HALF_A_SECOND,
    )
    pilot = next(phase for phase in planned if phase.name == "pilot")
    assert pilot.seconds == pytest.approx(3600) and "max_updates=7200" in shlex.split(pilot.command)


def test_long_run_has_a_pilot_of_about_an_hour():
    loaded = find("temporal").replace(epochs=100, seed=3)
    planned = phases(
        loaded,
        Settings(micro_batch=64),
        targets.find("t4"),
        counts=Counts(samples={"train": 100_000}, per_epoch=391, total=39_100, epochs=100),
        work=HALF_A_SECOND,
    )
    pilot = next(phase for phase in planned if phase.name == "pilot")
    assert pilot.seconds == pytest.approx(3600, rel=0.01)
    words = shlex.split(pilot.command)
    assert {"epochs=100", "seed=3", "micro_batch=64"} < set(words)
    assert any(word.startswith("subset=") for word in words)


@pytest.mark.parametrize("name", ["colab-t4", "rtx3090x2"])
def test_commands_have_the_limits_of_the_plan(name):
    target = targets.find(name)
    counts = Counts(samples={"train": 670}, per_epoch=3, total=150, epochs=50)
    for seconds, size, flags in (
        (None, None, []),
        (9 * 3600, 14 * 10**9, ["--limit", "9h", "--disk", "14GB"]),
        (100, 20_131_000, ["--limit", "100s", "--disk", "20.131MB"]),
    ):
        limited = targets.with_limits(target, session_seconds=seconds, disk_bytes=size)
        *_, run = phases(find("temporal"), Settings(), limited, counts=counts, work=HALF_A_SECOND)
        command = shlex.split(run.command)
        assert command == ["shoestring", "train", "temporal", "--run", "runs/temporal", "--on", name, *flags]


def test_notebook_html_has_no_scripts(temporal):
    html = temporal._repr_html_()
    assert "fits" in html and "CUDA context" in html and "runs/temporal" in html
    assert "<script" not in html and "http" not in html.replace("https://", "")
    folded = html.count("<details"), html.count("</details>")
    assert folded[0] == folded[1] > 1


def test_notebook_html_escapes_the_name_of_a_recipe():
    class Renamed(Wide):
        pass

    Renamed.__name__ = "<script>alert(1)</script>"
    html = make_plan(find(Renamed()), small(4), Settings(precision="fp32"))._repr_html_()
    assert "<script" not in html


def test_comparison_has_time_and_cost_of_each_target():
    comparison = compare(find(Epochs()), [targets.find(name) for name in ("kaggle-t4", "t4", "a100-80")], Settings())
    rows = {row["target"]: row for row in comparison.rows()}
    assert rows["kaggle-t4"]["usd"] == 0.0
    assert rows["t4"]["usd"] is None  # no list price is known
    a100 = rows["a100-80"]
    assert a100["usd"] == pytest.approx(a100["hours"] * PRICES["a100-80"].usd_per_hour)
    assert a100["update_seconds"] < rows["t4"]["update_seconds"] == rows["kaggle-t4"]["update_seconds"]
    assert [plan["target"] for plan in comparison.json()["plans"]] == list(rows)
    json.dumps(comparison.json(), allow_nan=False)
    assert "unknown" in comparison._repr_html_()
    priced = compare(find(Epochs()), [targets.find("t4")], Settings(), usd_per_hour=0.5)
    assert priced.plans[0].cost_usd == pytest.approx(priced.plans[0].hours * 0.5)


def test_comparison_uses_one_tracer(monkeypatch):
    forks, fork = [], child_process._fork
    monkeypatch.setattr(child_process, "_fork", lambda loaded: (forks.append(loaded), fork(loaded))[1])
    second = compare(find(Epochs()), [targets.find(name) for name in ("t4", "a100-80")], Settings()).plans[1]
    assert len(forks) == 1
    assert second.json() == make_plan(find(Epochs()), targets.find("a100-80"), Settings(), thorough=True).json()


@pytest.mark.slow
def test_plan_reports_that_only_one_gpu_is_used():
    plan = shoestring.plan("temporal", on="kaggle-t4x2", size="tiny")
    assert any("one of the 2 GPUs" in reason for reason in plan.reasons)
    assert (plan.settings.gpus, plan.settings.logical_shards, plan.settings.sharding) == (1, 1, "ddp")


class Epochs:
    effective_batch, epochs = 32, 3

    def model(self):
        return nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512))

    def batch(self, size):
        return torch.zeros(size, 256, 512)

    def loss(self, model, batch):
        return model(batch).square().mean()

    def data(self):
        return torch.zeros(100_000, 1)


class Wide:
    """Twelve MiB of weights for each sample that is on the GPU."""

    effective_batch = 8

    def model(self):
        return nn.Sequential(*[nn.Linear(512, 512) for _ in range(12)])

    def batch(self, size):
        return torch.zeros(size * 4096, 512)

    def loss(self, model, batch):
        return model(batch).square().mean()


def small(gib):
    t4 = targets.find("t4")
    return dataclasses.replace(t4, device=dataclasses.replace(t4.device, memory_bytes=int(gib * 2**30)))


def test_smaller_gpu_gets_a_smaller_microbatch():
    large_plan, small_plan = (make_plan(find(Wide()), small(gib), Settings(precision="fp32")) for gib in (4, 1.2))
    assert large_plan.fits and small_plan.fits
    assert small_plan.settings.micro_batch < 8
    assert not any(other["fits"] and other["settings"]["micro_batch"] == 8 for other in small_plan.alternatives)
    assert small_plan.time.predicted.update_seconds >= large_plan.time.predicted.update_seconds


def test_total_time_without_data_is_unknown():
    plan = make_plan(find(Wide()), small(4), Settings(precision="fp32"))
    assert plan.time.predicted.update_seconds > 0
    assert plan.time.predicted.total_seconds is None
    assert plan.sessions == ()
    assert any("no data()" in reason for reason in plan.reasons)


def test_plan_reports_that_compiled_blocks_are_not_estimated():
    plan = make_plan(find(Wide()), small(4), Settings(precision="fp32", micro_batch=8, compile="yes"))
    assert plan.settings.compile == "yes"
    assert any("compiled blocks are not estimated" in reason for reason in plan.reasons)


def test_cuda_graphs_are_planned_without_kernel_launches():
    graphs = make_plan(find(Wide()), small(4), Settings(precision="fp32", compile="graphs"))
    assert any("without kernel launches" in reason for reason in graphs.reasons)
    eager = make_plan(find(Wide()), small(4), graphs.settings.replace(compile="no"))
    assert graphs.time.predicted.update_seconds < eager.time.predicted.update_seconds


def test_checkpointing_without_blocks_is_an_error():
    class WithoutBlocks(Wide):
        def model(self):
            return nn.Linear(512, 512)

    with pytest.raises(UsageError, match="checkpointing=full"):
        make_plan(find(WithoutBlocks()), small(4), Settings(checkpointing="full"))


def test_plan_that_does_not_fit_has_its_numbers():
    plan = make_plan(find(Wide()), small(0.2), Settings(precision="fp32"))
    assert plan.verdict == "does not fit"
    assert not plan.memory.fits
    assert any("no microbatch fits" in reason for reason in plan.reasons)
    assert plan.time.predicted.update_seconds > 0
