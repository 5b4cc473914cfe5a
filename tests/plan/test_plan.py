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
from shoestring.errors import UsageError
from shoestring.estimate.calibration import Calibration
from shoestring.estimate.spread import Spread
from shoestring.hardware import targets
from shoestring.hardware.prices import PRICES
from shoestring.plan.comparison import compare
from shoestring.plan.phases import phases
from shoestring.plan.plan import make_plan
from shoestring.recipe.finding import find
from shoestring.report.terminal import plan as terminal
from shoestring.settings import Settings
from shoestring.trace import tracer


@pytest.fixture(scope="module")
def temporal():
    return shoestring.plan("temporal", on="kaggle-t4")


def test_a_plan_answers_everything(temporal):
    answer = json.loads(json.dumps(temporal.json(), allow_nan=False))
    assert answer["verdict"] == "fits"
    assert answer["settings"]["micro_batch"] == 256
    assert answer["memory"]["parameters"] == {"total": 625_726, "trainable": 625_726}
    memory, time, disk = answer["memory"], answer["time"], answer["disk"]
    assert sum(part["bytes"] for part in memory["parts"]) == memory["peak_bytes"]
    assert memory["low_bytes"] <= memory["peak_bytes"] <= memory["high_bytes"] <= memory["capacity_bytes"]
    assert all(part["source"] for part in memory["parts"])
    for name in ("update_seconds", "epoch_seconds", "total_seconds"):
        assert time[f"low_{name}"] < time[name] < time[f"high_{name}"]
    assert time["total_seconds"] == pytest.approx(50 * time["epoch_seconds"])
    # Weights, two moments and steps in fp32.
    assert disk["full_checkpoint_bytes"] == pytest.approx(625_726 * 12, rel=0.02)
    assert disk["peak_bytes"] < disk["limit_bytes"] == 20e9
    assert sum(session["updates"] for session in answer["sessions"]) == 150
    assert any("micro_batch" in reason for reason in answer["reasons"])
    assert any("precision" in reason for reason in answer["reasons"])


def test_what_the_recipe_says_of_its_data_is_part_of_a_plan():
    class Made:
        epochs = effective_batch = 2

        def model(self):
            return nn.Linear(4, 4)

        def batch(self, size):
            return torch.zeros(size, 4)

        def loss(self, model, batch):
            return model(batch).square().mean()

        def data(self):
            self.said = "the data are synthetic <zeros>"
            return torch.zeros(8, 4)

        def notes(self):
            return [self.said]

    found = make_plan(find(Made()), targets.find("t4"), Settings())
    assert found.json()["notes"] == ["the data are synthetic <zeros>"]
    assert "the data are synthetic &lt;zeros&gt;" in found._repr_html_()
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(terminal.screen(found))
    assert "the data are synthetic <zeros>" in console.export_text()


def test_a_calibration_is_told_of_and_one_of_another_device_changes_nothing(temporal):
    spread = Spread(low=0.9, high=1.1, source="30 updates measured in first (legal): 2.00 times the prediction")
    measured = Calibration(device="NVIDIA T4", factor=2.0, spread=spread, input_seconds=0.0, save_rate=None)
    plain = temporal.time.predicted.update_seconds
    target, wanted = temporal.target, temporal.settings
    found = make_plan(find("temporal"), target, wanted, calibration=measured)
    assert found.time.predicted.update_seconds == pytest.approx(2 * plain)
    assert f"time: calibrated with {spread.source}" in found.reasons
    other = make_plan(find("temporal"), target, wanted, calibration=dataclasses.replace(measured, device="an A10"))
    assert other.time.predicted.update_seconds == pytest.approx(plain)
    assert any("that run was on an A10, which tells nothing of NVIDIA T4" in reason for reason in other.reasons)


def test_the_same_question_has_the_same_answer(temporal):
    assert shoestring.plan("temporal", on="kaggle-t4").json() == temporal.json()


def test_the_machine_s_own_memory_the_quota_and_the_price_are_in_it(temporal):
    answer = temporal.json()
    assert answer["host"]["fits"] and answer["host"]["limit_bytes"] > 31 * 2**30
    assert sum(part["bytes"] for part in answer["host"]["parts"]) == answer["host"]["peak_bytes"]
    assert sum(part["bytes"] for part in answer["disk"]["parts"]) == answer["disk"]["peak_bytes"]
    assert answer["weeks"] == [{"week": 1, "sessions": 1, "hours": pytest.approx(temporal.hours)}]
    assert answer["cost"]["usd"] == 0 and answer["cost"]["price"]["source"]
    assert answer["binding"] in {limit["name"] for limit in answer["limits"]}
    assert answer["changes"] == []


def test_the_ladder_is_the_engine_s(temporal):
    first, *_, last = temporal.fallbacks
    assert first == "micro_batch 128, 64, 32, 16, 8, 4, 2, 1"
    assert "error" in last


def test_its_phases_are_lines_that_can_be_pasted(temporal):
    lines = {phase.name: shlex.split(phase.command) for phase in temporal.phases}
    assert lines["full run"] == ["shoestring", "train", "temporal", "--run", "runs/temporal", "--on", "kaggle-t4"]
    assert lines["smoke test"][-2:] == ["--set", "epochs=1"]
    assert "pilot" not in lines  # the whole takes minutes


def test_a_long_run_has_a_pilot_of_about_an_hour_on_a_part_of_the_data():
    loaded = find("temporal").replace(epochs=100, seed=3)
    found = phases(
        loaded, Settings(micro_batch=64), "t4", samples=100_000, update_seconds=0.5, total_seconds=100_000 / 256 * 50
    )
    pilot = next(phase for phase in found if phase.name == "pilot")
    assert 3600 < pilot.seconds < 4000
    words = shlex.split(pilot.command)
    assert {"epochs=100", "seed=3", "micro_batch=64"} < set(words)
    assert any(word.startswith("subset=") for word in words)


def test_a_notebook_shows_it_without_scripts(temporal):
    html = temporal._repr_html_()
    assert "fits" in html and "CUDA context" in html and "runs/temporal" in html
    assert "<script" not in html and "http" not in html.replace("https://", "")
    parser = html.count("<table"), html.count("</table>")
    assert parser[0] == parser[1] > 1


def test_what_a_recipe_says_cannot_be_code_in_a_notebook():
    class Odd(Wide):
        pass

    Odd.__name__ = "<script>alert(1)</script>"
    html = make_plan(find(Odd()), small(4), Settings(precision="fp32"))._repr_html_()
    assert "<script" not in html


def test_several_targets_are_compared_in_time_and_cost():
    found = compare(find(Epochs()), [targets.find(name) for name in ("kaggle-t4", "t4", "a100-80")], Settings())
    rows = {row["target"]: row for row in found.rows()}
    assert rows["kaggle-t4"]["usd"] == 0.0
    assert rows["t4"]["usd"] is None  # no list price is known
    a100 = rows["a100-80"]
    assert a100["usd"] == pytest.approx(a100["hours"] * PRICES["a100-80"].usd_per_hour)
    assert a100["update_seconds"] < rows["t4"]["update_seconds"] == rows["kaggle-t4"]["update_seconds"]
    assert [plan["target"] for plan in found.json()["plans"]] == list(rows)
    json.dumps(found.json(), allow_nan=False)
    assert "unknown" in found._repr_html_()
    given = compare(find(Epochs()), [targets.find("t4")], Settings(), usd_per_hour=0.5)
    assert given.plans[0].cost_usd == pytest.approx(given.plans[0].hours * 0.5)


def test_several_targets_are_compared_by_one_tracer(monkeypatch):
    begun, fork = [], tracer._fork
    monkeypatch.setattr(tracer, "_fork", lambda loaded: (begun.append(loaded), fork(loaded))[1])
    second = compare(find(Epochs()), [targets.find(name) for name in ("t4", "a100-80")], Settings()).plans[1]
    assert len(begun) == 1
    assert second.json() == make_plan(find(Epochs()), targets.find("a100-80"), Settings(), thorough=True).json()


def test_of_two_gpus_one_is_used_and_it_is_said():
    plan = shoestring.plan("temporal", on="kaggle-t4x2", size="tiny")
    assert any("one of the 2 GPUs" in reason for reason in plan.reasons)
    (both,) = [each for each in plan.proposals if not each.trains]
    assert both.fits and both.values == {} and "not trained yet" in both.name


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


def test_a_smaller_gpu_gets_a_smaller_microbatch_for_the_same_update():
    wanted = Settings(precision="fp32")
    sizes = [make_plan(find(Wide()), small(gib), wanted) for gib in (4, 1.2)]
    assert all(plan.fits for plan in sizes)
    assert sizes[1].settings.micro_batch < 8
    assert not any(other["fits"] and other["settings"]["micro_batch"] == 8 for other in sizes[1].alternatives)
    assert sizes[1].time.predicted.update_seconds >= sizes[0].time.predicted.update_seconds


def test_without_data_there_is_an_update_but_no_total():
    plan = make_plan(find(Wide()), small(4), Settings(precision="fp32"))
    assert plan.time.predicted.update_seconds > 0
    assert plan.time.predicted.total_seconds is None
    assert plan.sessions == ()
    assert any("no data()" in reason for reason in plan.reasons)


def test_a_compiled_step_is_not_estimated_and_that_is_said():
    plan = make_plan(find(Wide()), small(4), Settings(precision="fp32", micro_batch=8, compile="yes"))
    assert plan.settings.compile == "yes"
    assert any("compiled blocks are not estimated" in reason for reason in plan.reasons)


def test_graphs_are_planned_without_the_hosts_launches():
    graphs = make_plan(find(Wide()), small(4), Settings(precision="fp32", compile="graphs"))
    assert any("without the host's share" in reason for reason in graphs.reasons)
    same = make_plan(find(Wide()), small(4), graphs.settings.replace(compile="no"))
    assert graphs.time.predicted.update_seconds < same.time.predicted.update_seconds


def test_what_the_model_cannot_have_is_the_models_own_error():
    class Alone(Wide):
        def model(self):
            return nn.Linear(512, 512)

    with pytest.raises(UsageError, match="checkpointing=full"):
        make_plan(find(Alone()), small(4), Settings(checkpointing="full"))


def test_what_cannot_fit_is_a_verdict_with_its_numbers():
    plan = make_plan(find(Wide()), small(0.2), Settings(precision="fp32"))
    assert plan.verdict == "does not fit"
    assert not plan.memory.fits
    assert any("not even that fits" in reason for reason in plan.reasons)
    assert plan.time.predicted.update_seconds > 0
