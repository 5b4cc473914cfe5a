"""The commands `shoestring kaggle ...`: their help, their errors, and a chain that is already there."""

import dataclasses
import inspect
import json
import re
from pathlib import Path

import pytest

from shoestring.api import kaggle as api_kaggle
from shoestring.base.errors import UsageError
from shoestring.cli.commands.kaggle import app
from shoestring.remote.kaggle.chain_file import read_chain
from shoestring.remote.kaggle.starting import StartRequest, _resume, _with_absent_apart
from tests.libraries import hide
from tests.loopback_kaggle import Loopback
from tests.remote.kaggle.memory_kaggle import MemoryKaggle, make_state
from tests.remote.kaggle.test_chain import finish
from tests.test_api import ARGUMENTS

OF_THE_COMMAND_ALONE = {"as_json", "config_file", "dry_run", "folds", "yes"}
NOWHERE = "http://127.0.0.1:9"
COMMANDS = app.registered_commands


@pytest.fixture
def run(tmp_path):
    finish(tmp_path / "run", MemoryKaggle())
    return tmp_path / "run"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.callback.__name__)
def test_options_are_arguments_and_help_ends_with_two_examples(command, run_command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    verb = command.callback.__name__
    options = inspect.signature(command.callback).parameters.keys() - OF_THE_COMMAND_ALONE
    names = {{**ARGUMENTS, "every": "every_seconds", "data": "datasets"}.get(name, name) for name in options}
    assert names <= inspect.signature(getattr(api_kaggle, verb)).parameters.keys()
    _, out, _ = run_command("kaggle", verb, "--help")
    lines = [line.strip() for line in out.splitlines() if line.strip()]
    assert lines[-3] == "Examples:" and all(line.startswith(f"shoestring kaggle {verb}") for line in lines[-2:])


def test_status_has_the_documented_keys(run, run_command):
    status, out, _ = run_command("kaggle", "status", "--run", run, "--json")
    chain = json.loads(out)
    assert status == 0 and set(chain) == {
        "user", "base", "recipe", "on", "limit_seconds", "internet", "allow_cpu", "set", "data", "status", "reason",
        "package", "package_digest", "package_status", "sessions", "waiting_until", "kernels", "update",
        "total_updates", "forecast", "kaggle", "note",
    }  # fmt: skip
    assert (chain["status"], chain["update"], len(chain["sessions"])) == ("finished", 30, 3)
    _, out, _ = run_command("kaggle", "status", "--run", run)
    assert out.startswith("finished: a reason") and "session 3" in out and "shoestring report" in out
    assert run_command("kaggle", "watch", "--run", run)[1].startswith("finished: a reason")


def test_a_chain_of_another_run_is_not_continued(run, run_command):
    status, _, err = run_command("kaggle", "start", "legal", "--run", run, "--set", "epochs=3")
    assert status == 2 and "the chain trains temporal, not legal" in err and "epochs=3" in err


def test_all_folds_are_sessions_of_their_own(run_command, tmp_path):
    status, _, err = run_command("kaggle", "start", "shapes.py", "--folds", "5", "--run", tmp_path / "shapes")
    assert status == 2 and "a session on Kaggle trains one run" in err
    assert f"kaggle start shapes.py --set fold=1/5 --run {tmp_path / 'shapes'}/fold-1" in " ".join(err.split())


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
        loopback.add_dataset("me/law", {f"cases/{number}.txt": b"a judgment" for number in range(250)})
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
        (["--set", "data=me/prices:b.csv"], {}, 2, "data=me/prices:b.csv: the dataset has no such file or folder"),
        (
            ["--data", "me/prices"],
            {},
            2,
            r"rows of me/prices is not known.*\n  - temporal cannot tell.*\n  - a row is a bar\nhint: --set rows=N",
        ),
        (["--set", "rows=9"], {}, 2, "rows: for the plan of data that are attached, but temporal would train its own"),
        (["--set", "lengths=no.json", "--data", "me/prices"], {}, 2, r"lengths=\S+no.json: cannot be read"),
        (
            [],
            {"KAGGLE_API_TOKEN": "KGAT_secret_of_another"},
            1,
            "Kaggle does not accept the token of KAGGLE_API_TOKEN: ",
        ),
        (["--every", "1s"], {"HTTP_PROXY": NOWHERE, "http_proxy": NOWHERE}, 1, "Kaggle cannot be reached"),
    ],
    ids=["quota", "dataset", "path", "option", "rows", "no data", "no lengths", "account", "network"],
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
    assert list(kaggle_without_quota.datasets.datasets) == ["me/prices", "me/law"]
    assert not (tmp_path / "run" / "kaggle" / "chain.json").exists()


@pytest.mark.parametrize(
    ("options", "planned", "requests"),
    [
        ([], {"rows": 250}, 2),
        (["row_tokens=9"], {"row_tokens": "9", "rows": 250}, 2),
        (["rows=70"], {"rows": "70"}, 1),
        (["lengths=LENGTHS"], {"lengths": "LENGTHS"}, 1),
    ],
)
def test_the_plan_is_for_the_rows_of_the_attached_data(
    options, planned, requests, kaggle_without_quota, tmp_path, run_command, monkeypatch
):
    def show_plan(request, absent, on_event):
        assert request.values == {"epochs": "3"}  # what the sessions get
        raise UsageError(f"planned with {absent}")

    for name, value in kaggle_without_quota.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("shoestring.remote.kaggle.starting._fitting_plan", show_plan)
    monkeypatch.chdir(tmp_path)
    Path("LENGTHS").write_text('{"unit": "tokens", "counts": {"30": 100}}')
    del kaggle_without_quota.requests[:]
    words = [word for option in ["epochs=3", *options] for word in ("--set", option)]
    _, _, err = run_command("kaggle", "start", "legal", "--run", "run", "--data", "me/law:cases", *words)
    assert f"planned with {planned}" in err
    assert ("me/law has 250 rows by its files (a judgment each)" in err) == (planned.get("rows") == 250)
    methods = [method.rpartition("/")[2] for _, method in kaggle_without_quota.requests]
    assert methods.count("ListDatasetFiles") == requests


def write_config(folder):
    """Write the configuration of a small model of transformers."""
    values = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "num_hidden_layers": 1}
    values |= {"intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 50}
    (folder / "config.json").write_text(json.dumps(values))
    return folder / "config.json"


def test_a_dry_run_and_a_chain_take_the_options_of_the_plan_alone(run, run_command, tmp_path):
    lengths = tmp_path / "lengths.json"
    lengths.write_text('{"unit": "sentences", "counts": {"30": 100}}')
    dry_run = ["kaggle", "start", "legal", "--run", tmp_path / "new", "--dry-run", "--data", "me/law"]
    dry_run += ["--set", "size=tiny"]  # its plan is made soon
    status, out, _ = run_command(*dry_run, "--set", "rows=9", "--json")
    assert status == 0 and '"me/law"' in out
    for option, problem in ((f"lengths={lengths}", "has lengths in sentences"), ("rows=1", "must be at least 2")):
        status, _, err = run_command(*dry_run, "--set", option)
        assert status == 2 and problem in err
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    status, _, err = run_command(*dry_run[:4], tmp_path / "mine", *dry_run[5:])
    assert status == 2 and "is not empty: thesis.txt" in err
    hugging_face = ["kaggle", "start", f"hf:{write_config(tmp_path)}", "--run", tmp_path / "new", "--dry-run"]
    assert "rows: for the plan of data" in run_command(*hugging_face, "--set", "rows=9")[2]
    err = run_command(*hugging_face, "--data", "me/law", "--set", "rows=9")[2]
    assert f"model={tmp_path}: a path of this machine; in a dataset it is model=OWNER/DATASET:" in err
    request = StartRequest(run=run, recipe="temporal", values={"rows": "500"})
    assert _resume(_with_absent_apart(request), read_chain(run / "kaggle")).config["set"] == {}
    with pytest.raises(UsageError, match="options of temporal cannot be used"):
        _resume(_with_absent_apart(dataclasses.replace(request, values={"rows": "0"})), read_chain(run / "kaggle"))


def test_ctrl_c_says_how_to_go_on(tmp_path, run_command, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(api_kaggle, "start", interrupt)
    monkeypatch.setattr("shoestring.cli.commands.kaggle.option_values", lambda *_: {})
    status, out, err = run_command("kaggle", "start", "temporal", "--run", tmp_path)
    assert (status, out) == (0, "") and "nothing has been sent" in err
    (tmp_path / "kaggle").mkdir()
    make_state().write(tmp_path / "kaggle")
    status, out, err = run_command("kaggle", "start", "temporal", "--run", tmp_path)
    assert (status, out) == (0, "") and "goes on" in err and f"shoestring kaggle stop --run {tmp_path}" in err
