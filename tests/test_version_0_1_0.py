"""What version 0.1.0 began is continued, evaluated and drawn: `fixtures/version_0_1_0` has run directories of it.

Where this environment is the one that the runs were written in, a continued run ends in the bits that version 0.1.0
ended in. Elsewhere a run is continued with `allow_inexact`, and ends with a status and metrics.
"""

import hashlib
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
from shoestring.errors import UsageError
from tests.fixtures.version_0_1_0.make import digest

FIXTURE = Path(__file__).parent / "fixtures" / "version_0_1_0"
EXPECTED = json.loads((FIXTURE / "expected.json").read_text())
RECIPES = {"engine": "sums.py", "finished": "sums.py", "trainer": "trainer_sums.py"}
PAUSED_AT = {"engine": 16, "trainer": 15, "script": 9}
UPDATES = {"engine": 24, "finished": 24, "trainer": 18, "script": 12}


@dataclass(frozen=True, kw_only=True)
class Continued:
    name: str
    run: Path
    began: Path
    """The directory as version 0.1.0 left it."""
    differences: list[str]
    """Between the environment that it was written in and this one."""
    weights: str
    """The digest of those that training ended with."""


@pytest.fixture(autouse=True, scope="module")
def session_as_recorded(tmp_path_factory):
    """The number of threads that the runs were written with, and no state of a person's own."""
    threads = torch.get_num_threads()
    torch.set_num_threads(environment(FIXTURE / "engine")["threads"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.delenv("SIGTERM_AT", raising=False)
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=list(PAUSED_AT))
def continued(request, tmp_path_factory):
    """A paused run, trained to its end by the code of today."""
    name = request.param
    run = copied(name, tmp_path_factory.mktemp(name))
    different = differences(run)
    if name == "script":
        from tests.fixtures.version_0_1_0 import script

        _, _, weights = script.trained(run, allow_inexact=bool(different))
    else:
        shoestring.train(recipe_beside(run), run=run, on="cpu", allow_inexact=bool(different))
        weights = load_file(run / "light" / "model.safetensors")
    return Continued(name=name, run=run, began=FIXTURE / name, differences=different, weights=digest(weights))


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    """Each of the runs as version 0.1.0 left it."""
    folder = tmp_path_factory.mktemp("untouched")
    return {name: copied(name, folder / name) for name in UPDATES}


def test_it_is_continued_where_it_was_and_finished(continued):
    state = read(continued.run / "state.json")
    total = UPDATES[continued.name]
    assert (state["status"], state["update"], state["total_updates"]) == ("finished", total, total)
    assert names(state["metrics"]) == names(EXPECTED["metrics"].get(continued.name, {}))
    before, after = (events(folder) for folder in (continued.began, continued.run))
    assert after[: len(before)] == before
    added = after[len(before) :]
    assert [event["update"] for event in added if event["event"] == "session"] == [PAUSED_AT[continued.name]]
    assert {event["session"] for event in added} == {before[-1]["session"] + 1}
    assert not [event for event in added if event["event"] in ("damaged", "unsaved", "oom")]


def test_where_the_environment_is_the_same_nothing_is_inexact_and_elsewhere_that_is_said(continued):
    inexact = [note for note in notes(continued.run) if "not bit for bit" in note]
    assert len(inexact) == bool(continued.differences)
    assert all(name in inexact[0] for name in continued.differences)


def test_it_ends_in_the_bits_that_version_0_1_0_ended_in(continued):
    elsewhere = [*continued.differences, *other_processor(continued.run)]
    if elsewhere:
        pytest.skip(f"the run was written in another environment: {', '.join(elsewhere)}")
    assert continued.weights == EXPECTED["weights"][continued.name]
    assert read(continued.run / "state.json")["metrics"] == EXPECTED["metrics"].get(continued.name, {})


def test_whatever_version_0_1_0_wrote_is_still_written(continued):
    """Files, and the keys of each of them; what is new may come beside."""
    assert files(continued.began) <= files(continued.run)
    for name in ("plan.json", "state.json", "ledger.json"):
        assert keys(read(continued.began / name)) <= keys(read(continued.run / name)), name
    before, after = (newest_checkpoint(folder) for folder in (continued.began, continued.run))
    assert keys(read(before / "manifest.json")) <= keys(read(after / "manifest.json"))
    assert keys(without_libraries(before)) <= keys(without_libraries(after))
    before, after = events(continued.began), events(continued.run)[len(events(continued.began)) :]
    for kind in {event["event"] for event in after}:
        then, now = (keys([event for event in lines if event["event"] == kind]) for lines in (before, after))
        assert then <= now, kind
    assert {"session", "save", "stop"} <= {event["event"] for event in after}


def test_the_ledger_counts_the_sessions_of_both_versions(continued):
    before, after = (read(folder / "ledger.json") for folder in (continued.began, continued.run))
    assert after["sessions"][: len(before["sessions"])] == before["sessions"]
    assert [session["updates"] for session in after["sessions"][len(before["sessions"]) :]] == [
        UPDATES[continued.name] - PAUSED_AT[continued.name]
    ]


def test_elsewhere_it_is_not_continued_without_a_word_and_its_state_is_not_lost(tmp_path):
    run = copied("engine", tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        with pytest.raises(UsageError, match="bit for bit") as refused:
            shoestring.train(recipe_beside(run), run=run, on="cpu")
    finally:
        torch.set_num_threads(threads)
    assert f"threads: saved under {threads}, here {threads + 1}" in refused.value.problems
    before, after = (read(folder / "state.json") for folder in (FIXTURE / "engine", run))
    assert after["status"] == "failed"
    assert {name: after[name] for name in ("update", "total_updates", "metrics")} == {
        name: before[name] for name in ("update", "total_updates", "metrics")
    }


def test_its_weights_are_kept_as_its_settings_say(continued):
    """Those of plan.json, `keep_light=2` among them."""
    last, epochs = {"model.safetensors", "manifest.json"}, {"update-00000018", "update-00000024"}
    expected = {"engine": last | epochs, "trainer": last, "script": set()}[continued.name]
    assert {path.name for path in continued.run.glob("light/*")} == expected
    assert len(list(continued.run.glob("checkpoints/update-*"))) == 2


def test_a_finished_run_that_is_trained_again_says_so_and_stays_as_it_is(untouched):
    run = untouched["finished"]
    before = contents(run)
    outcome = shoestring.train(recipe_beside(run), run=run, on="cpu")
    state = read(FIXTURE / "finished" / "state.json")
    assert {name: getattr(outcome, name) for name in state.keys() - {"next"}} == {
        name: value for name, value in state.items() if name != "next"
    }
    assert contents(run) == before


@pytest.mark.parametrize(
    ("name", "folder"), [(name, folder) for name, folders in EXPECTED["evaluated"].items() for folder in folders]
)
def test_its_weights_are_evaluated_as_version_0_1_0_did(untouched, name, folder):
    run, expected = untouched[name], EXPECTED["evaluated"][name][folder]
    before = contents(run)
    if name == "finished":
        # The recipe is found by plan.json, once a person has named its file for this run.
        shoestring.train(recipe_beside(run), run=run, on="cpu")
        found = shoestring.evaluate(run / folder, on="cpu")
    else:
        found = shoestring.evaluate(run / folder, recipe=recipe_beside(run), on="cpu")
    unverified = [note for note in found.notes if "are not verified" in note]
    assert len(unverified) == ("checkpoints" not in found.weights)  # weights alone had no manifest
    assert [note for note in found.notes if note not in unverified] == expected["notes"]
    assert found.update == expected["update"]
    assert names(found.metrics) == names(expected["metrics"])
    for part, metrics in expected["metrics"].items():  # on another processor sums differ in their last digits
        assert found.metrics[part] == pytest.approx(metrics, rel=1e-4, abs=1e-5)
    assert contents(run) == before


def test_metrics_of_a_finished_run_are_those_of_its_state(untouched):
    """But for the last digits: the run came down to smaller microbatches than evaluating it takes."""
    metrics = read(untouched["finished"] / "state.json")["metrics"]
    found = shoestring.evaluate(untouched["finished"], recipe=recipe_beside(untouched["finished"]), on="cpu").metrics
    assert names(metrics) == names(found) and found.keys() == {"validation", "test"}
    for part, values in found.items():
        assert metrics[part] == pytest.approx(values, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", list(UPDATES))
def test_it_is_drawn_without_a_problem(untouched, name):
    drawn_whole(untouched[name], status="finished" if name == "finished" else "paused")


def test_continued_it_is_drawn_without_a_problem(continued):
    drawn_whole(continued.run, status="finished")


def test_what_cannot_be_drawn_would_be_listed(tmp_path):
    """Which `drawn_whole` relies on."""
    run = copied("script", tmp_path)
    (run / "state.json").unlink()
    assert remarks(shoestring.report(run)) == ["state.json is missing"]


def test_the_fixture_is_as_version_0_1_0_left_it():
    """A recipe's file that is edited is another recipe, and its runs would be continued inexactly everywhere."""
    for name, recipe in RECIPES.items():
        plan = read(FIXTURE / name / "plan.json")
        assert plan["digest"] == hashlib.sha256((FIXTURE / recipe).read_bytes()).hexdigest()
        assert Path(plan["reference"]) == Path("/tmp/shoestring-0.1.0", recipe)
    assert {event["versions"]["shoestring"] for event in events(FIXTURE / "engine") if "versions" in event} == {"0.1.0"}


def drawn_whole(run: Path, *, status: str) -> None:
    page = shoestring.report(run)
    text, state, happened = page.read_text(), read(run / "state.json"), events(run)
    assert f">{status}</span>" in text
    assert f"{state['update']} of {state['total_updates']}" in text
    assert f"Sources: plan.json, state.json and {len(happened)} events" in text
    # All that is remarked are the run's own notes, and where its memory ran out.
    expected = [event.get("message", "out of memory") for event in happened if event["event"] in ("note", "oom")]
    assert len(remarks(page)) == len(expected)
    assert all(text in remark for text, remark in zip(expected, remarks(page), strict=True))
    for metric in {name for event in happened if event["event"] == "evaluation" for name in event["metrics"]}:
        assert metric in text
    assert text.count("<svg") >= 2


def remarks(page: Path) -> list[str]:
    """What is listed under Remarks, without markup."""
    found = re.search(r"<h2>Remarks</h2><ul>(.*?)</ul>", page.read_text(), re.DOTALL)
    items = re.findall(r"<li>(.*?)</li>", found[1], re.DOTALL) if found else []
    return [re.sub(r"<[^>]*>", "", item) for item in items]


def copied(name: str, folder: Path) -> Path:
    """The run `name` in `folder` with its recipe's file beside it, which is where plan.json then says that it is."""
    run = folder / name
    shutil.copytree(FIXTURE / name, run)
    if recipe := RECIPES.get(name):
        shutil.copy(FIXTURE / recipe, folder)
        plan = (run / "plan.json").read_text()
        (run / "plan.json").write_text(plan.replace(read(run / "plan.json")["reference"], str(folder / recipe)))
    return run


def recipe_beside(run: Path) -> str:
    return str(run.parent / RECIPES[run.name])


def environment(run: Path) -> dict[str, Any]:
    """What the newest checkpoint says that its bits depend on."""
    return read(newest_checkpoint(run) / "state.json")["environment"]


def differences(run: Path) -> list[str]:
    """The names of what is not here as it was where the run's newest checkpoint was saved."""
    saved = environment(run)
    here = {
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }
    here |= {library: version(library) for library in ("transformers", "accelerate", "peft", "trl") if library in saved}
    return sorted(name for name in here if name in saved and here[name] != saved[name])


def other_processor(run: Path) -> list[str]:
    """Its name where a run was continued on another than it began on: kernels may be chosen by it."""
    began, *_, last = (event["machine"]["cpu"] for event in events(run) if event["event"] == "session")
    return [last] if last != began else []


def without_libraries(checkpoint: Path) -> dict[str, Any]:
    """Its state.json, without the content of sections that are torch's and transformers' affair."""
    foreign = dict.fromkeys(("model", "optimizer", "scheduler", "scaler", "trainer"))
    state = read(checkpoint / "state.json")
    return state | {name: foreign[name] for name in foreign.keys() & state.keys()}


def newest_checkpoint(run: Path) -> Path:
    return max((run / "checkpoints").glob("update-*"))


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def notes(run: Path) -> list[str]:
    return [event["message"] for event in events(run) if event["event"] == "note"]


def files(run: Path) -> set[str]:
    """The names of a run's files, whatever update they are of."""
    return {re.sub(r"\d{8}", "N", str(path.relative_to(run))) for path in run.rglob("*") if path.is_file()}


def contents(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def names(metrics: dict[str, Any]) -> dict[str, set[str]]:
    return {part: set(values) for part, values in metrics.items()}


def keys(value: Any, at: str = "") -> set[str]:
    """The keys of JSON and of whatever is in it, each with those above it."""
    if isinstance(value, list):
        return set().union(*(keys(item, f"{at}[]") for item in value))
    if isinstance(value, dict):
        return {f"{at}.{name}" for name in value}.union(*(keys(item, f"{at}.{name}") for name, item in value.items()))
    return set()
