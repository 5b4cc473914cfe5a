"""A run becomes a file without private details, and a changed or invented file is refused."""

import pytest

import shoestring
from shoestring.base.errors import UsageError
from shoestring.base.units import GIB, MIB
from shoestring.runs.measurement.file import read, text_of
from shoestring.runs.measurement.of_run import measurement_of
from shoestring.runs.measurement.problems import same_runs
from shoestring.training.checkpoint.files import with_digest
from tests.runs.measurement.runs import NOW, directory, plan, session


@pytest.fixture
def run(tmp_path):
    return directory(tmp_path / "run", session(1, 0) + session(2, 21))


def test_run_becomes_a_file_without_private_details(run, tmp_path):
    file = tmp_path / "t4.json"
    written = shoestring.measured(run, out=file)
    assert read(file) == written.content == shoestring.measured(run).content
    assert shoestring.measured(run, check=file).checked
    content = written.content
    assert content["device"]["name"] == "NVIDIA T4"
    assert content["predicted"]["memory"] == {"value": 900 * MIB, "low": 800 * MIB, "high": 1000 * MIB}
    measured = content["measured"]
    assert (measured["memory_bytes"], measured["updates"]) == (920 * MIB, 40)
    assert measured["update"] == pytest.approx(
        {"value": 0.24, "low": 0.23, "high": 0.25}
    )  # without each session's first update
    assert measured["sessions"] == [{"seconds": 40.0, "updates": 21, "ended": "paused"}] * 2
    assert content["recipe"]["options"] == {"size": "full", "epochs": 2, "effective_batch": 32}
    assert not [word for word in ("ann", "secret", str(tmp_path), "Linux") if word in file.read_text()]
    with pytest.raises(UsageError, match="the file exists"):
        shoestring.measured(run, out=file)


def test_prediction_is_that_before_the_probe(tmp_path):
    before = {
        "peak_bytes": 1.0, "low_bytes": 0.0, "high_bytes": 2.0,
        "update_seconds": 4.0, "low_update_seconds": 3.0, "high_update_seconds": 5.0,
    }  # fmt: skip
    predicted = measurement_of(directory(tmp_path / "run", session(1, 0), plan(before)))["predicted"]
    assert (predicted["memory"]["value"], predicted["update"]["value"], predicted["probed"]) == (1.0, 4.0, True)


def test_sessions_on_another_device_do_not_count(tmp_path):
    other = session(2, 21, gpu="NVIDIA L4")
    content = measurement_of(directory(tmp_path / "run", session(1, 0) + other))
    assert (content["measured"]["updates"], len(content["measured"]["sessions"])) == (20, 1)


def test_recipe_of_somebody_has_no_name_and_no_options_of_its_own(tmp_path):
    stored = plan() | {"recipe": "acme", "reference": "/home/ann/acme.py"}
    stored["options"] |= {"acme_customers": 7, "quantization": "nf4"}
    recipe = measurement_of(directory(tmp_path / "run", session(1, 0), stored))["recipe"]
    assert (recipe["name"], recipe["options"]) == (
        "own", {"epochs": 2, "effective_batch": 32, "quantization": "nf4"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("events", "stored", "message"),
    [
        ([], None, "no session of the run has begun"),
        (session(1, 0)[:2], None, "fewer than 3 updates after the first"),
        (session(1, 0), {"recipe": "script", "settings": {}}, "nothing was predicted"),
    ],
)
def test_run_without_a_prediction_or_updates_is_an_error(tmp_path, events, stored, message):
    with pytest.raises(UsageError, match=message):
        measurement_of(directory(tmp_path / "run", events, stored))
    with pytest.raises(UsageError, match="nothing was predicted"):
        measurement_of(tmp_path)


FALSE = {
    "seconds": (("measured", "update"), {"value": 0.2, "low": 0.1, "high": 0.3}, "the predicted one to the last digit"),
    "more than the device has": (("measured", "memory_bytes"), 40 * GIB, "more than the device has"),
    "no segments": (("measured", "memory_bytes"), 920 * MIB + 512, "not a multiple of 2 MiB"),
    "no room for the weights": (("measured", "memory_bytes"), 20 * MIB, "less than the weights"),
    "faster than memory": (("measured", "update"), {"value": 1e-3, "low": 1e-5, "high": 0.1}, "needs to read"),
    "slower than the sessions": (("measured", "update"), {"value": 9.0, "low": 8.0, "high": 9.0}, "all sessions"),
    "more updates than made": (("measured", "updates"), 90, "more than the sessions have made"),
    "tomorrow": (("date",), "2031-01-01", "not between"),
    "another size": (("device", "memory_bytes"), 80 * GIB, "is not that of NVIDIA T4"),
    "simulated": (("device", "simulated"), True, "simulated GPU"),
    "no digest": (("record", "events_sha256"), "abc", "not a SHA-256"),
    "few events": (("record", "events"), 1, "fewer than the sessions"),
    "unknown field": (("measured", "wall"), 1, "'wall' is unknown"),
    "wrong type": (("measured", "updates"), "40", "updates: '40' is not an integer"),
    "missing object": (("predicted",), None, "predicted"),
    "long text": (("recipe", "options"), {"size": "x" * 300}, "longer than 200"),
}  # fmt: skip


@pytest.mark.parametrize("name", FALSE)
def test_invented_file_is_refused(run, tmp_path, name):
    path, value, message = FALSE[name]
    content = measurement_of(run)
    del content["sha256"]
    parent = content
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    file = tmp_path / "false.json"
    file.write_text(text_of(with_digest(content)))
    with pytest.raises(UsageError, match="not credible") as caught:
        read(file)
    assert any(message in problem for problem in caught.value.problems)


def test_file_that_was_changed_or_is_of_another_run_is_refused(run, tmp_path):
    file = tmp_path / "t4.json"
    shoestring.measured(run, out=file)
    other = directory(tmp_path / "other", session(1, 0))
    with pytest.raises(UsageError, match="not the measurement of the run") as caught:
        shoestring.measured(other, check=file)
    assert any(problem.startswith("record") for problem in caught.value.problems)
    file.write_text(file.read_text().replace("0.25", "0.26"))
    with pytest.raises(UsageError, match="not credible") as caught:
        shoestring.measured(check=file)
    assert "the digest does not match" in caught.value.problems[0]


def test_same_run_twice_and_copied_values_are_found(run, tmp_path):
    first, other = measurement_of(run), measurement_of(directory(tmp_path / "other", session(1, 0, time=NOW - 9)[:3]))
    assert list(same_runs({"a": first, "b": other})) == []
    assert next(iter(same_runs({"a": first, "b": first}))) == "a and b are of the same run"
    copied = other | {"measured": first["measured"]}
    assert list(same_runs({"a": first, "b": copied})) == ["a and b have the same measured values"]


def test_command_shows_the_content_before_it_writes(run, tmp_path, run_command):
    status, output, _ = run_command("measured", str(run))
    assert status == 0 and '"format": "shoestring measurement"' in output and "-2.2%" in output
    status, output, _ = run_command("measured", str(run), "--out", str(tmp_path / "m.json"))
    assert status == 0 and "written to" in output
    assert run_command("measured", "--check", str(tmp_path / "m.json"))[0] == 0
    assert run_command("measured")[0] == 2
