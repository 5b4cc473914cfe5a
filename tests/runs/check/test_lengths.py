"""`check RECIPE --lengths FILE` counts the samples' lengths, and a plan with the file equals that of the data."""

import json

import pytest

from shoestring.api import plan, write_lengths


@pytest.mark.slow
def test_a_plan_with_the_file_has_the_samples_and_the_time_of_the_data(tmp_path, run_command):
    path = tmp_path / "lengths.json"
    status, output, _ = run_command("check", "legal", "--set", "size=tiny", "--lengths", path, "--json")
    content = json.loads(output)
    assert status == 0 and content == json.loads(path.read_text())
    assert (content["unit"], content["rows"]) == ("tokens", 80)
    assert sum(content["counts"].values()) == content["samples"]["train"]

    settings = {"size": "tiny", "precision": "fp32", "epochs": 1}
    here, elsewhere = (plan("legal", "t4", **settings, **values) for values in ({}, {"lengths": path}))
    assert elsewhere.facts.samples == here.facts.samples
    times = [answer.time.predicted.total_seconds for answer in (here, elsewhere)]
    assert abs(times[0] / times[1] - 1) < 0.02
    notes = " ".join(plan("legal", "t4", **settings, context="single", lengths=path).facts.notes)
    assert "counted with the tokens of hashed words with context=previous" in notes


def test_an_existing_file_is_replaced_on_request_only(tmp_path, run_command):
    path = tmp_path / "lengths.json"
    calls = []
    write_lengths("legal", path, size="tiny", progress=calls.append)
    status, _, error = run_command("check", "legal", "--set", "size=tiny", "--lengths", path)
    assert status == 2 and "exists" in error and "--overwrite" in error
    assert run_command("check", "legal", "--set", "size=tiny", "--lengths", path, "--overwrite")[0] == 0
    path.write_text("mine")
    assert run_command("check", "legal", "--set", "size=tiny", "--lengths", path, "--overwrite")[0] == 2
    assert path.read_text() == "mine"


def test_what_has_no_lengths_is_an_error_of_usage(tmp_path, run_command):
    path = tmp_path / "lengths.json"
    for arguments, problem in (
        (("temporal",), "the samples of temporal all have the same length"),
        ((), "--lengths needs a recipe"),
        (("legal", "--set", "rows=10"), "rows stand in plans for data that are not here"),
        (("legal", "--measure", tmp_path / "rates.json"), "--lengths needs a recipe, and no --measure"),
    ):
        status, _, error = run_command("check", *arguments, "--lengths", path)
        assert status == 2 and problem in error
    assert not path.exists()
