"""A few updates beside what was predicted: really run in a process of their own, and judged from stages made up."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from shoestring.check import preflight, trial, tried
from shoestring.check.preflight import Checked
from shoestring.check.tried import Trial, attempt, judged, measured, smaller
from shoestring.errors import DataError
from shoestring.estimate.memory import Range
from shoestring.hardware.targets import find
from shoestring.recipe.finding import choose
from shoestring.settings import Settings
from shoestring.units import GIB, MIB
from tests.check.handmade import BUILD, DISK, T4, driver, facts, held

MINE = """
import os, sys, time
import torch
from torch import nn

class Mine:
    effective_batch = 8
    def model(self): return nn.Sequential(nn.Linear(1024, 4096), nn.Linear(4096, 1))
    def batch(self, size): return torch.ones(size, 1024)
    def loss(self, model, batch):
        print('{{"stage": "printed"}}')
        {loss}
        return model(batch).square().mean()
    def data(self):
        {data}
        return torch.ones(20, 1024)
"""


def plan(*, seconds=0.1, micro=4, precision="fp32", memory=(10 * MIB, 20 * MIB, 40 * MIB), kind="cpu", **other):
    """As much of a plan as a trial looks at."""
    duration = lambda value: SimpleNamespace(update_seconds=value)  # noqa: E731
    reach = Range(*memory)
    return SimpleNamespace(
        settings=Settings(micro_batch=micro, precision=precision, checkpointing="no"),
        facts=SimpleNamespace(batch_norm=other.get("batch_norm", False)),
        memory=SimpleNamespace(allocated=reach, reserved=reach, high_bytes=memory[2]),
        time=SimpleNamespace(
            predicted=duration(seconds),
            low=duration(seconds and seconds / 2),
            high=duration(seconds and seconds * 2),
        ),
        disk=SimpleNamespace(peak_bytes=other.get("disk", MIB)),
        target=SimpleNamespace(device=SimpleNamespace(kind=kind)),
    )


@pytest.fixture
def mine(tmp_path):
    """A recipe whose loss and data begin with other lines."""

    def make(loss="pass", data="pass"):
        path = tmp_path / "mine.py"
        path.write_text(MINE.format(loss=loss, data=data))
        return choose(str(path), {})[0]

    return make


def asked(planned, loaded):
    """As `attempt`, in this process."""
    stages = []
    question = {
        "reference": loaded.reference,
        "options": dict(loaded.options),
        "settings": planned.settings.json(),
        "microbatches": [4, 4],
        "device": "cpu",
    }
    trial.try_out(question, stages.append)
    return Trial(plan=planned, loaded=loaded, stages=tuple(stages))


def lines(done):
    return {finding.name: finding for finding in judged(done)}


def test_updates_run_and_what_they_took_stands_beside_what_was_predicted(mine):
    done = attempt(plan(), mine(), find("cpu"))
    found = lines(done)
    assert list(found) == ["data", "update", "memory", "time"]
    assert not done.stage("printed")
    assert (found["data"].status, "20 samples" in found["data"].message) == ("pass", True)
    assert (found["update"].status, "4 updates of 8 samples ran on cpu" in found["update"].message) == ("pass", True)
    numbers = measured(done)
    # Weights, gradients and two moments of 4.2 million parameters, in fp32.
    assert 4 * 4 * 4_198_400 < numbers["memory"]["measured_bytes"] < 4 * 4 * 4_198_400 + 96 * MIB
    assert numbers["memory"]["ratio"] == numbers["memory"]["measured_bytes"] / (20 * MIB)
    assert numbers["time"]["measured_seconds"] > 0


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ("raise ValueError('what the recipe says')", r"ValueError in .*mine\.py, line 12: what the recipe says"),
        ("raise torch.OutOfMemoryError('CUDA out of memory. Tried')", "out of memory: CUDA out of memory"),
    ],
)
def test_whatever_ends_the_updates_is_a_line(mine, loss, said):
    found = judged(asked(plan(), mine(loss=loss)))
    assert [finding.name for finding in found] == ["data", "update"]
    assert found[1].status == "fail"
    assert re.search(said, found[1].message), found[1].message


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ("os.kill(os.getpid(), 9)", r"after 0 updates \(model\): the system killed it"),
        ("sys.exit(3)", r"ended with status 3"),
    ],
)
def test_a_process_that_dies_is_a_line(mine, loss, said):
    found = judged(attempt(plan(), mine(loss=loss), find("cpu")))
    assert [finding.name for finding in found] == ["data", "update"]
    assert re.search(said, found[1].message), found[1].message


def test_updates_that_do_not_end_are_given_up(mine):
    given_up = attempt(plan(), mine(loss="time.sleep(600)"), find("cpu"), seconds=3.0)
    assert "not done after 3.0 s" in lines(given_up)["update"].message


def test_on_a_slow_machine_two_updates_are_enough(mine, monkeypatch):
    monkeypatch.setattr(trial, "ENOUGH_SECONDS", 0.0)
    found = lines(asked(plan(), mine()))
    assert "2 updates of 8 samples" in found["update"].message


def test_data_that_cannot_be_read_are_a_line(mine):
    found = judged(asked(plan(), mine(data="raise OSError('no such mount')")))
    assert ([finding.name for finding in found], "no such mount" in found[0].message) == (["update"], True)


@pytest.mark.parametrize(
    ("seconds", "batch_norm", "expected"),
    [
        (0.1, False, (64, 16)),
        (5.0, False, (64, 16)),
        (50.0, False, (6, 6)),
        (10.0, False, (32, 16)),
        (5000.0, False, (1, 1)),
        (5000.0, True, (2, 2)),  # a lone sample has no statistics
        (None, False, (16, 16)),
    ],
)
def test_what_would_take_long_is_tried_with_less(seconds, batch_norm, expected):
    loaded = SimpleNamespace(effective_batch=64)
    assert smaller(plan(seconds=seconds, micro=16, batch_norm=batch_norm), loaded) == expected


def made_up(plan, *, bytes_=20 * MIB, seconds=(9.0, 0.1, 0.1, 0.1), loss="1.5"):
    stages = [{"stage": "model"}]
    stages += [{"stage": "update", "seconds": each, "loss": loss} for each in seconds]
    stages.append({"stage": "done", "bytes": bytes_, "device": "cuda: Tesla T4"})
    return Trial(plan=plan, loaded=SimpleNamespace(effective_batch=8), stages=tuple(stages))


@pytest.mark.parametrize(
    ("kind", "bytes_", "status"),
    [("cuda", 40 * MIB, "pass"), ("cuda", 41 * MIB, "warn"), ("cpu", 41 * MIB, "pass"), ("cpu", 105 * MIB, "warn")],
)
def test_more_memory_than_predicted_is_told(kind, bytes_, status):
    found = lines(made_up(plan(kind=kind), bytes_=bytes_))["memory"]
    assert found.status == status
    assert f"ratio {bytes_ / (20 * MIB):.2f}" in found.message


@pytest.mark.parametrize(("seconds", "status"), [(0.04, "warn"), (0.1, "pass"), (0.3, "warn")])
def test_a_time_outside_of_the_predicted_range_is_told_and_the_first_update_does_not_count(seconds, status):
    found = lines(made_up(plan(), seconds=(9.0, seconds, seconds, seconds)))["time"]
    assert found.status == status


def test_a_device_whose_rates_nobody_knows_still_has_a_time():
    assert "100 ms" in lines(made_up(plan(seconds=None)))["time"].message
    assert measured(made_up(plan(seconds=None)))["time"]["ratio"] is None


def test_a_loss_that_is_no_number_fails():
    assert lines(made_up(plan(), loss="nan"))["update"].status == "fail"


def test_room_is_looked_for_on_the_disk_and_on_the_gpu():
    def names(found):
        return {finding.name: finding.status for finding in found}

    wide = plan(kind="cuda", memory=(GIB, 8 * GIB, 9 * GIB), disk=10 * GIB)
    assert names(tried.room(wide, facts())) == {"room on disk": "pass"}
    full = facts(disk=replace(DISK, free_bytes=9 * GIB), driver=driver(held(T4, 7 * GIB, 4)))
    assert names(tried.room(wide, full)) == {"room on disk": "fail", "room on the GPU": "fail"}
    # What the run has already is its own.
    assert names(tried.room(wide, facts(disk=replace(DISK, free_bytes=9 * GIB, used_bytes=2 * GIB)))) == {
        "room on disk": "pass"
    }


def looked(monkeypatch, found):
    monkeypatch.setattr(preflight, "look", lambda *_: found)


def test_where_what_it_needs_is_missing_nothing_is_tried(monkeypatch, mine, tmp_path):
    looked(monkeypatch, facts(on="local", driver=driver(T4), build=replace(BUILD, cuda=None, used=())))
    monkeypatch.setattr(tried, "make_plan", lambda *_: pytest.fail("planned"))
    found = preflight.preflight("local", tmp_path, mine(), Settings())
    assert found.status == "fail"
    assert "not tried, see kernels" in found.findings[-1].message


def test_a_plan_that_cannot_be_made_is_a_line_with_its_problems(monkeypatch, mine, tmp_path):
    def bad(*_):
        raise DataError("bars.csv cannot be used", problems=["line 7: no number"], hint="mend it")

    looked(monkeypatch, facts(on="local", driver=None, build=replace(BUILD, used=())))
    monkeypatch.setattr(tried, "make_plan", bad)
    found = preflight.preflight("local", tmp_path, mine(), Settings()).findings[-1]
    assert (found.name, found.status, found.hint) == ("plan", "fail", "mend it")
    assert "line 7" in found.message


def test_a_plan_that_does_not_fit_is_not_tried(monkeypatch, mine, tmp_path):
    looked(monkeypatch, facts(on="local", driver=None, build=replace(BUILD, used=())))
    monkeypatch.setattr(tried, "make_plan", lambda *_: SimpleNamespace(fits=False, reasons=["memory: too much"]))
    monkeypatch.setattr(tried, "attempt", lambda *_: pytest.fail("tried"))
    found = preflight.preflight("local", tmp_path, mine(), Settings()).findings[-1]
    assert (found.name, found.status, found.message) == ("plan", "fail", "memory: too much")


def test_the_worst_line_decides():
    good, odd, bad = (SimpleNamespace(status=status) for status in ("pass", "warn", "fail"))

    def status(*findings):
        return Checked(target="local", recipe="", findings=findings).status

    assert [status(good), status(good, odd), status(odd, bad, good)] == ["pass", "warn", "fail"]
