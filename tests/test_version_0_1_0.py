"""Runs of version 0.1.0 can be continued, evaluated and reported: they are in `fixtures/version_0_1_0`.

In the environment that wrote the runs, a continued run ends with the same bits as in version 0.1.0. In any other
environment a run is continued with `allow_inexact`, and ends with a status and metrics.
"""

import hashlib
import html
import json
import platform
import re
import shutil
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import load_file

import shoestring
from shoestring.base.errors import UsageError
from tests.fixtures.version_0_1_0.make import digest
from tests.slow import slow_except

FIXTURE = Path(__file__).parent / "fixtures" / "version_0_1_0"
EXPECTED = json.loads((FIXTURE / "expected.json").read_text())
RECIPES = {"engine": "sums.py", "finished": "sums.py", "trainer": "trainer_sums.py"}
PAUSED_AT = {"engine": 16, "trainer": 15, "script": 9}
UPDATES = {"engine": 24, "finished": 24, "trainer": 18, "script": 12}


@dataclass(frozen=True, kw_only=True)
class ContinuedRun:
    name: str
    run: Path
    original: Path
    """The directory as written by version 0.1.0."""
    differences: list[str]
    """Differences between the environment that wrote the run and this one."""
    weights: str
    """The digest of the final weights."""


@pytest.fixture(autouse=True, scope="module")
def recorded_session(tmp_path_factory):
    """Use the number of threads that wrote the runs, and no state of the user."""
    threads = torch.get_num_threads()
    torch.set_num_threads(environment(FIXTURE / "engine")["threads"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.delenv("SIGTERM_AT", raising=False)
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=list(PAUSED_AT))
def continued(request, tmp_path_factory):
    """A paused run of version 0.1.0, trained to its end by the present code."""
    name = request.param
    run = copy_run(name, tmp_path_factory.mktemp(name))
    run_differences = environment_differences(run)
    if name == "script":
        from tests.fixtures.version_0_1_0 import script

        _, _, weights = script.train(run, allow_inexact=bool(run_differences))
    else:
        shoestring.train(recipe_beside(run), run=run, on="cpu", allow_inexact=bool(run_differences))
        weights = load_file(run / "light" / "model.safetensors")
    return ContinuedRun(
        name=name, run=run, original=FIXTURE / name, differences=run_differences, weights=digest(weights)
    )


@pytest.fixture(scope="module")
def original_runs(tmp_path_factory):
    """A copy of each run as written by version 0.1.0."""
    folder = tmp_path_factory.mktemp("original")
    return {name: copy_run(name, folder / name) for name in UPDATES}


def test_paused_run_is_continued_and_finished(continued):
    state = read_json(continued.run / "state.json")
    total = UPDATES[continued.name]
    assert (state["status"], state["update"], state["total_updates"]) == ("finished", total, total)
    assert names(state["metrics"]) == names(EXPECTED["metrics"].get(continued.name, {}))
    before, after = (read_events(folder) for folder in (continued.original, continued.run))
    assert after[: len(before)] == before
    added = after[len(before) :]
    assert [event["update"] for event in added if event["event"] == "session"] == [PAUSED_AT[continued.name]]
    assert {event["session"] for event in added} == {before[-1]["session"] + 1}
    assert not [event for event in added if event["event"] in ("damaged", "unsaved", "oom")]


def test_inexact_resume_is_noted_in_another_environment(continued):
    inexact = [note for note in read_notes(continued.run) if "not bit-identical" in note]
    assert len(inexact) == bool(continued.differences)
    assert all(name in inexact[0] for name in continued.differences)


def test_continued_run_has_the_bits_of_version_0_1_0(continued):
    environment_changes = [*continued.differences, *changed_processor(continued.run)]
    if environment_changes:
        pytest.skip(f"the run was written in another environment: {', '.join(environment_changes)}")
    assert continued.weights == EXPECTED["weights"][continued.name]
    assert read_json(continued.run / "state.json")["metrics"] == EXPECTED["metrics"].get(continued.name, {})


def test_files_and_keys_of_version_0_1_0_are_still_written(continued):
    """New files and keys may be added."""
    assert file_names(continued.original) <= file_names(continued.run)
    for name in ("plan.json", "state.json", "ledger.json"):
        assert keys(read_json(continued.original / name)) <= keys(read_json(continued.run / name)), name
    before, after = (newest_checkpoint(folder) for folder in (continued.original, continued.run))
    assert keys(read_json(before / "manifest.json")) <= keys(read_json(after / "manifest.json"))
    assert keys(without_libraries(before)) <= keys(without_libraries(after))
    before, after = read_events(continued.original), read_events(continued.run)[len(read_events(continued.original)) :]
    for kind in {event["event"] for event in after}:
        old_keys, new_keys = (keys([event for event in lines if event["event"] == kind]) for lines in (before, after))
        assert old_keys <= new_keys, kind
    assert {"session", "save", "stop"} <= {event["event"] for event in after}


def test_ledger_has_the_sessions_of_both_versions(continued):
    before, after = (read_json(folder / "ledger.json") for folder in (continued.original, continued.run))
    for session, session_before in zip(after["sessions"], before["sessions"], strict=False):
        assert session == {**session_before, "processes": 1}
    assert [session["updates"] for session in after["sessions"][len(before["sessions"]) :]] == [
        UPDATES[continued.name] - PAUSED_AT[continued.name]
    ]


def test_refused_resume_keeps_the_state(tmp_path):
    run = copy_run("engine", tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        with pytest.raises(UsageError, match="bit for bit") as error:
            shoestring.train(recipe_beside(run), run=run, on="cpu")
    finally:
        torch.set_num_threads(threads)
    assert f"threads: saved with {threads}, now {threads + 1}" in error.value.problems
    before, after = (read_json(folder / "state.json") for folder in (FIXTURE / "engine", run))
    assert after == before


def test_weights_are_retained_by_its_settings(continued):
    """The settings are those of plan.json, which include `keep_light=2`."""
    last_weights, epoch_weights = {"model.safetensors", "manifest.json"}, {"update-00000018", "update-00000024"}
    expected = {"engine": last_weights | epoch_weights, "trainer": last_weights, "script": set()}[continued.name]
    assert {path.name for path in continued.run.glob("light/*")} == expected
    assert len(list(continued.run.glob("checkpoints/update-*"))) == 2


def test_training_a_finished_run_changes_nothing(original_runs):
    run = original_runs["finished"]
    before = read_files(run)
    outcome = shoestring.train(recipe_beside(run), run=run, on="cpu")
    state = read_json(FIXTURE / "finished" / "state.json")
    assert {name: getattr(outcome, name) for name in state.keys() - {"next"}} == {
        name: value for name, value in state.items() if name != "next"
    }
    assert read_files(run) == before


@pytest.mark.parametrize(
    ("name", "folder"), [(name, folder) for name, folders in EXPECTED["evaluated"].items() for folder in folders]
)
def test_weights_are_evaluated_as_in_version_0_1_0(original_runs, name, folder):
    run, expected = original_runs[name], EXPECTED["evaluated"][name][folder]
    before = read_files(run)
    if name == "finished":
        # plan.json locates the recipe, once the user has passed its file for this run.
        shoestring.train(recipe_beside(run), run=run, on="cpu")
        evaluation = shoestring.evaluate(run / folder, on="cpu")
    else:
        evaluation = shoestring.evaluate(run / folder, recipe=recipe_beside(run), on="cpu")
    unverified = [note for note in evaluation.notes if "are not verified" in note]
    assert len(unverified) == ("checkpoints" not in evaluation.weights)  # weights alone had no manifest
    assert [note for note in evaluation.notes if note not in unverified] == expected["notes"]
    assert evaluation.update == expected["update"]
    assert names(evaluation.metrics) == names(expected["metrics"])
    for part, metrics in expected["metrics"].items():  # the last digits of sums depend on the processor
        assert evaluation.metrics[part] == pytest.approx(metrics, rel=1e-4, abs=1e-5)
    assert read_files(run) == before


def test_metrics_of_a_finished_run_are_those_of_its_state(original_runs):
    """Up to the last digits, because the run used smaller microbatches after out-of-memory than its evaluation does."""
    metrics = read_json(original_runs["finished"] / "state.json")["metrics"]
    evaluated = shoestring.evaluate(
        original_runs["finished"], recipe=recipe_beside(original_runs["finished"]), on="cpu"
    ).metrics
    assert names(metrics) == names(evaluated) and evaluated.keys() == {"validation", "test"}
    for part, values in evaluated.items():
        assert metrics[part] == pytest.approx(values, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", slow_except(list(UPDATES), "finished"))
def test_original_run_has_a_complete_report(original_runs, name):
    assert_complete_report(original_runs[name], status="finished" if name == "finished" else "paused")


def test_continued_run_has_a_complete_report(continued):
    assert_complete_report(continued.run, status="finished")


def test_missing_file_is_listed_under_remarks(tmp_path):
    """`assert_complete_report` relies on this."""
    run = copy_run("script", tmp_path)
    (run / "state.json").unlink()
    assert remarks(shoestring.report(run)) == ["state.json is missing"]


def test_fixture_is_unchanged_since_version_0_1_0():
    """A recipe's file must not be edited: its runs store the digest, and would be resumed inexactly everywhere."""
    for name, recipe in RECIPES.items():
        plan = read_json(FIXTURE / name / "plan.json")
        assert plan["digest"] == hashlib.sha256((FIXTURE / recipe).read_bytes()).hexdigest()
        assert Path(plan["reference"]) == Path("/tmp/shoestring-0.1.0", recipe)
    assert {event["versions"]["shoestring"] for event in read_events(FIXTURE / "engine") if "versions" in event} == {
        "0.1.0"
    }


def assert_complete_report(run: Path, *, status: str) -> None:
    page = shoestring.report(run)
    text, state, run_events = page.read_text(), read_json(run / "state.json"), read_events(run)
    assert f">{status}</span>" in text
    assert f"{state['update']} of {state['total_updates']}" in text
    assert f"Sources: plan.json, state.json and {len(run_events)} events" in text
    # The remarks are only the run's own notes and its out-of-memory events.
    expected = [event.get("message", "out of memory") for event in run_events if event["event"] in ("note", "oom")]
    assert len(remarks(page)) == len(expected)
    assert all(text in remark for text, remark in zip(expected, remarks(page), strict=True))
    for metric in {name for event in run_events if event["event"] == "evaluation" for name in event["metrics"]}:
        assert metric in text
    assert text.count("<svg") >= 2


def remarks(page: Path) -> list[str]:
    """Return the items of the section Remarks, without markup."""
    section = re.search(r"<h2>Remarks</h2><ul>(.*?)</ul>", page.read_text(), re.DOTALL)
    items = re.findall(r"<li>(.*?)</li>", section[1], re.DOTALL) if section else []
    return [html.unescape(re.sub(r"<[^>]*>", "", item)) for item in items]


def copy_run(name: str, folder: Path) -> Path:
    """Copy the run `name` and its recipe's file to `folder`, and set the recipe's path in plan.json."""
    run = folder / name
    shutil.copytree(FIXTURE / name, run)
    if recipe := RECIPES.get(name):
        shutil.copy(FIXTURE / recipe, folder)
        plan = (run / "plan.json").read_text()
        (run / "plan.json").write_text(plan.replace(read_json(run / "plan.json")["reference"], str(folder / recipe)))
    return run


def recipe_beside(run: Path) -> str:
    return str(run.parent / RECIPES[run.name])


def environment(run: Path) -> dict[str, Any]:
    """Return the environment that the newest checkpoint stores: what its bits depend on."""
    return read_json(newest_checkpoint(run) / "state.json")["environment"]


def environment_differences(run: Path) -> list[str]:
    """Return the names of facts that differ between this environment and that of the run's newest checkpoint."""
    saved = environment(run)
    present = {
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }
    present |= {
        library: version(library) for library in ("transformers", "accelerate", "peft", "trl") if library in saved
    }
    return sorted(name for name in present if name in saved and present[name] != saved[name])


def changed_processor(run: Path) -> list[str]:
    """Return the processor's name if it differs from that of the first session: kernels may depend on it."""
    first, *_, last = (event["machine"]["cpu"] for event in read_events(run) if event["event"] == "session")
    return [last] if last != first else []


def without_libraries(checkpoint: Path) -> dict[str, Any]:
    """Return its state.json with empty sections where torch and transformers define the content."""
    library_sections = dict.fromkeys(("model", "optimizer", "scheduler", "scaler", "trainer"))
    state = read_json(checkpoint / "state.json")
    return state | {name: library_sections[name] for name in library_sections.keys() & state.keys()}


def newest_checkpoint(run: Path) -> Path:
    return max((run / "checkpoints").glob("update-*"))


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def read_events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def read_notes(run: Path) -> list[str]:
    return [event["message"] for event in read_events(run) if event["event"] == "note"]


def file_names(run: Path) -> set[str]:
    """Return the names of a run's files, without the numbers of updates."""
    return {re.sub(r"\d{8}", "N", str(path.relative_to(run))) for path in run.rglob("*") if path.is_file()}


def read_files(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def names(metrics: dict[str, Any]) -> dict[str, set[str]]:
    return {part: set(values) for part, values in metrics.items()}


def keys(value: Any, path: str = "") -> set[str]:
    """Return the paths of all keys in a JSON value."""
    if isinstance(value, list):
        return set().union(*(keys(item, f"{path}[]") for item in value))
    if isinstance(value, dict):
        return {f"{path}.{name}" for name in value}.union(
            *(keys(item, f"{path}.{name}") for name, item in value.items())
        )
    return set()
