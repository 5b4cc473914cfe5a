"""The verbs as functions, with every option that the commands have."""

import inspect
import time

import pytest

import shoestring
from shoestring import api, cli
from shoestring.errors import UsageError
from shoestring.estimate.calibration import Calibration
from shoestring.estimate.spread import Spread
from tests.mine import Mine

ARGUMENTS = {"limit": "limit_seconds", "disk": "disk_bytes", "price": "usd_per_hour", "set_": "values"}
"""Options that a command parses, and the arguments of `api` that receive the result."""
_OF_THE_COMMAND_ALONE = {"as_json", "full", "purpose", "config_file", "once", "measure", "lengths", "overwrite", "by"}
"""Options of the command line. `check --measure` is `api.measure`, `check --lengths` is `api.write_lengths`, and
`plan --by` is `by_seconds` of `api.compare`."""


@pytest.mark.parametrize("command", cli.app.registered_commands, ids=lambda command: command.callback.__name__)
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
