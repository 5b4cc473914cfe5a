"""The commands `shoestring kaggle ...`: their help, their errors, and a chain that is already there."""

import inspect
import json
import re

import pytest

from shoestring import api_kaggle, cli_kaggle
from tests.libraries import hide
from tests.loopback_kaggle import Loopback
from tests.remote.kaggle.memory_kaggle import MemoryKaggle, make_state
from tests.remote.kaggle.test_chain import finish
from tests.test_api import ARGUMENTS

OF_THE_COMMAND_ALONE = {"as_json", "config_file", "dry_run", "yes"}
NOWHERE = "http://127.0.0.1:9"
COMMANDS = cli_kaggle.app.registered_commands


@pytest.fixture
def run(tmp_path):
    finish(tmp_path / "run", MemoryKaggle())
    return tmp_path / "run"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.callback.__name__)
def test_options_are_arguments_and_help_ends_with_two_examples(command, run_command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    verb = command.callback.__name__
    options = inspect.signature(command.callback).parameters.keys() - OF_THE_COMMAND_ALONE
    names = {{**ARGUMENTS, "every": "every_seconds"}.get(name, name) for name in options}
    assert names <= inspect.signature(getattr(api_kaggle, verb)).parameters.keys()
    _, out, _ = run_command("kaggle", verb, "--help")
    lines = [line.strip() for line in out.splitlines() if line.strip()]
    assert lines[-3] == "Examples:" and all(line.startswith(f"shoestring kaggle {verb}") for line in lines[-2:])


def test_status_has_the_documented_keys(run, run_command):
    status, out, _ = run_command("kaggle", "status", "--run", run, "--json")
    chain = json.loads(out)
    assert status == 0 and set(chain) == {
        "user", "base", "recipe", "on", "limit_seconds", "internet", "set", "data", "status", "reason",
        "package", "package_digest", "package_status", "sessions", "waiting_until", "kernels", "update",
        "total_updates", "kaggle", "note",
    }  # fmt: skip
    assert (chain["status"], chain["update"], len(chain["sessions"])) == ("finished", 30, 3)
    _, out, _ = run_command("kaggle", "status", "--run", run)
    assert out.startswith("finished: a reason") and "session 3" in out and "shoestring report" in out
    assert run_command("kaggle", "watch", "--run", run)[1].startswith("finished: a reason")


def test_a_chain_of_another_run_is_not_continued(run, run_command):
    status, _, err = run_command("kaggle", "start", "legal", "--run", run, "--set", "epochs=3")
    assert status == 2 and "the chain trains temporal, not legal" in err and "epochs=3" in err


@pytest.mark.parametrize("verb", ["status", "watch", "fetch", "stop", "start"])
def test_without_a_chain_it_is_one_error(verb, run_command, tmp_path, monkeypatch):
    status, out, err = run_command("kaggle", verb, "--run", tmp_path / "nothing")
    assert (status, out) == (2, "") and "has no chain on Kaggle" in err and "hint: " in err


def test_stop_does_not_delete_without_an_answer(tmp_path, run_command):
    state = make_state()
    state.sessions = []
    (tmp_path / "kaggle").mkdir()
    state.write(tmp_path / "kaggle")
    status, _, err = run_command("kaggle", "stop", "--run", tmp_path)
    assert status == 2 and "the only thing that ends its session" in err and "add --yes" in err


def test_stop_leaves_a_chain_that_has_ended_as_it_is(run, run_command):
    status, out, err = run_command("kaggle", "stop", "--run", run)
    assert status == 0 and out.startswith("finished: a reason") and not err


def test_other_options_of_a_chain_are_named(run, run_command):
    options = ["--on", "kaggle-t4", "--no-internet", "--user", "you"]
    status, _, err = run_command("kaggle", "start", "--run", run, *options)
    assert status == 2 and all(text in err for text in ("--on kaggle-t4", "--no-internet", "--user you"))


def test_a_missing_client_is_one_error(tmp_path, run_command, monkeypatch):
    hide(monkeypatch, "kaggle")
    status, _, err = run_command("kaggle", "start", "temporal", "--run", tmp_path / "run")
    assert status == 2 and "[kaggle]" in err


@pytest.fixture(scope="module")
def kaggle_without_quota(tmp_path_factory):
    with Loopback(tmp_path_factory.mktemp("kaggle"), quota_seconds=60) as loopback:
        loopback.add_dataset("me/prices", {"a.csv": b"1"})
        yield loopback


@pytest.mark.parametrize(
    ("options", "environment", "status", "message"),
    [
        (
            ["--no-wait"],
            {},
            1,
            r"error: 1 min 00 s of the week's GPU quota are left; it is refreshed on 20\S+ \S+ UTC\n",
        ),
        (["--data", "me/nothing"], {}, 2, "--data me/nothing: there is no such dataset that your account may read"),
        (["--data", "me/prices:b.csv"], {}, 2, "has no such file or folder; it has a.csv"),
        ([], {"KAGGLE_API_TOKEN": "KGAT_secret_of_another"}, 1, "nobody is signed in to Kaggle on this machine"),
        (["--every", "1s"], {"HTTP_PROXY": NOWHERE, "http_proxy": NOWHERE}, 1, "Kaggle cannot be reached"),
    ],
    ids=["quota", "dataset", "path", "account", "network"],
)
def test_what_prevents_a_start_is_one_error_before_anything_is_sent(
    options, environment, status, message, kaggle_without_quota, tmp_path, run_command, monkeypatch
):
    for name, value in {**kaggle_without_quota.environment, **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("shoestring.remote.kaggle.starting._QUICK_SECONDS", 0.5)
    actual, out, err = run_command("kaggle", "start", "temporal", "--run", tmp_path / "run", *options)
    assert (actual, out) == (status, "") and re.search(message, err) and err.count("error: ") == 1 and "hint: " in err
    assert "KGAT_secret_of_another" not in err and kaggle_without_quota.settings.token not in err
    assert list(kaggle_without_quota.datasets.datasets) == ["me/prices"]
    assert not (tmp_path / "run" / "kaggle" / "chain.json").exists()


def test_ctrl_c_says_how_to_go_on(tmp_path, run_command, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(api_kaggle, "start", interrupt)
    monkeypatch.setattr("shoestring.cli_kaggle.option_values", lambda *_: {})
    status, out, err = run_command("kaggle", "start", "temporal", "--run", tmp_path)
    assert (status, out) == (0, "") and "nothing has been sent" in err
    (tmp_path / "kaggle").mkdir()
    make_state().write(tmp_path / "kaggle")
    status, out, err = run_command("kaggle", "start", "temporal", "--run", tmp_path)
    assert (status, out) == (0, "") and "goes on" in err and f"shoestring kaggle stop --run {tmp_path}" in err
