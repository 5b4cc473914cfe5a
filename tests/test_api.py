"""The verbs as functions, with every option that the commands have."""

import dataclasses
import inspect
import time

import pytest

import shoestring
from shoestring import api
from shoestring.base.errors import UsageError
from shoestring.cli.commands import app
from shoestring.planning.estimate.calibration import Calibration
from shoestring.planning.estimate.spread import Spread
from tests.mine import Mine

ARGUMENTS = {
    "limit": "limit_seconds",
    "disk": "disk_bytes",
    "ram": "ram_bytes",
    "price": "usd_per_hour",
    "set_": "values",
    "recipe_file": "recipe",
}
"""Options that a command parses, and the arguments of `api` that receive the result."""
_OF_THE_COMMAND_ALONE = {"as_json", "full", "purpose", "config_file", "once", "measure", "lengths", "overwrite", "by"}
_OF_THE_COMMAND_ALONE |= {"prepare", "folds"}
"""Options of the command line. `check --measure` is `api.measure`, `check --lengths` is `api.write_lengths`,
`rehearse --prepare` is `api.prepare_rehearsal`, `train --folds` is `api.cross_validate`, and `plan --by` is
`by_seconds` of `api.compare`."""


@pytest.mark.parametrize("command", app.registered_commands, ids=lambda command: command.callback.__name__)
def test_options_are_arguments_of_the_function(command):
    options = inspect.signature(command.callback).parameters.keys() - _OF_THE_COMMAND_ALONE
    verb = getattr(api, command.callback.__name__)
    assert {ARGUMENTS.get(name, name) for name in options} <= inspect.signature(verb).parameters.keys()


def test_limits_and_price_apply_to_every_target():
    arguments = {"limit_seconds": 1200, "disk_bytes": 10**9, "usd_per_hour": 0.5}
    comparison = shoestring.compare(Mine(), ["kaggle-t4", "t4"], **arguments)
    for plan in comparison.plans:
        assert plan.target.platform.session_hours == pytest.approx(1 / 3)
        assert plan.disk.limit_bytes == 10**9
        assert plan.cost_usd == pytest.approx(plan.hours * 0.5)
    assert comparison.plans[1].json() == shoestring.plan(Mine(), on="t4", **arguments).json()


def test_plan_for_kaggle_compares_all_of_its_machines():
    comparison = shoestring.plan(Mine(), on="kaggle")
    every, some = (comparison.first(depends_on_account=depends) for depends in (False, True))
    assert every.target.name == "kaggle-t4x2" and some.target.depends_on_account
    assert every.calendar_hours == min(plan.calendar_hours for plan in comparison.plans[:2])
    assert some.calendar_hours == min(plan.calendar_hours for plan in comparison.plans[2:])
    answer = comparison.json()
    expected = {"platform": "kaggle", "every_account": "kaggle-t4x2", "some_accounts": some.target.name, "command": ""}
    assert answer["first"] == expected
    assert [row["depends_on_account"] for row in answer["comparison"]] == [False] * 2 + [True] * 5
    assert comparison.sentences[0].partition(", within")[0] in comparison._repr_html_()
    later = dataclasses.replace(every, sessions=every.sessions * 3, weeks=every.weeks * 2)
    reordered = dataclasses.replace(comparison, plans=(later, *comparison.plans[1:]))
    assert reordered.first(depends_on_account=False).target.name == "kaggle-t4"
    alone = dataclasses.replace(comparison, plans=(later,)).sentences
    assert len(alone) == 1 and alone[0].endswith(" in 3 sessions, within 2 weeks' quotas of 30 GPU hours.")

    assert shoestring.compare(Mine(), "kaggle-t4").json()["first"] is None
    too_large = shoestring.compare(Mine(), ["kaggle"], disk_bytes=1000)
    assert too_large.json()["first"]["every_account"] is None and too_large.command == ""
    assert (
        too_large.sentences[0] == "The run fits none of the machines that every account has (kaggle-t4x2, kaggle-t4)."
    )


def test_only_machines_that_everybody_can_have_are_the_cheapest_by_default():
    free = [name for name in api.priced_targets() if name.startswith(("kaggle", "colab"))]
    assert free == ["kaggle-t4x2", "kaggle-t4", "colab-t4"]


def test_comparison_is_calibrated(monkeypatch, tmp_path):
    with pytest.raises(UsageError, match=r"plan\.json"):
        shoestring.compare(Mine(), ["t4"], calibrate=tmp_path)
    spread = Spread(low=0.9, high=1.1, source="a run")
    measured = Calibration(device="NVIDIA T4", factor=2.0, spread=spread, input_seconds=0.0, save_rate=None)
    monkeypatch.setattr("shoestring.runs.calibrate.load_calibration", {tmp_path: measured}.get)
    plain, twice = (shoestring.compare(Mine(), ["t4"], calibrate=run).rows()[0] for run in (None, str(tmp_path)))
    assert twice["update_seconds"] == pytest.approx(2 * plain["update_seconds"])


def test_session_limit_counts_from_started(tmp_path):
    outcome = shoestring.train(Mine(), run=tmp_path / "run", limit_seconds=60, started=time.monotonic() - 100)
    assert (outcome.status, outcome.update) == ("paused", 0)
