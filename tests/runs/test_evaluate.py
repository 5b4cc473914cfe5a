"""Evaluation of saved weights gives the metrics of the run, from the model's file alone."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import shoestring
from shoestring.base.errors import CheckpointError, RunError, UsageError
from shoestring.recipe.finding import choose, find
from shoestring.training.checkpoint.files import directory_bytes, sha256
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.stored import StoredPlan
from tests.sessions import session

OPTIONS = {"size": "tiny", "epochs": 2, "effective_batch": 64, "seq_len": 10}
ROWS = [(day, 10 + day % 7) for day in range(330)]
BARS = "time,open,high,low,close,volume\n" + "".join(
    f"2020-{day // 28 + 1:02d}-{day % 28 + 1:02d},{low + 1},{low + 3},{low},{low + 2},{1000 + day}\n"
    for day, low in ROWS
)


def planned(run: Path, recipe: str | object, values: dict, settings: dict) -> None:
    """Write the plan.json of a run whose session made no plan."""
    loaded, _ = choose(recipe, values)
    plan = StoredPlan.from_recipe(loaded, {"settings": {"micro_batch": 64, "precision": "fp32", **settings}})
    options = {**plan.options, "data": None} if "data" in plan.options else plan.options
    replace(plan, options=options).write(RunDirectory(run).plan_file)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of `temporal`, which tests must not change."""
    run = tmp_path_factory.mktemp("finished") / "run"
    session("temporal", run, {**OPTIONS, "micro_batch": 64})
    planned(run, "temporal", OPTIONS, {})
    return run


@pytest.fixture
def run_copy(finished, tmp_path):
    """A copy of the finished run, which a test may change."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def stored_metrics(run):
    return json.loads((run / "state.json").read_text())["metrics"]


def file_states(run):
    return {path: (sha256(path), path.stat().st_mtime_ns) for path in sorted(run.rglob("*")) if path.is_file()}


def test_best_weights_have_the_metrics_of_the_run(finished):
    states_before = file_states(finished)
    result = shoestring.evaluate(finished)
    assert result.metrics == stored_metrics(finished)
    assert (result.weights, result.recipe) == (str(finished / "best"), "temporal")
    assert file_states(finished) == states_before


def test_notes_of_the_recipe_follow_reading_of_data(finished, monkeypatch):
    recipe = type(find("temporal").recipe)
    reads = []
    data = recipe.data
    monkeypatch.setattr(recipe, "data", lambda self: reads.append(1) or data(self))
    monkeypatch.setattr(recipe, "notes", lambda _: [f"the data were read {len(reads)} times"], raising=False)
    assert shoestring.evaluate(finished).notes == ("the data were read 1 times",)


def test_last_weights_and_checkpoint_are_fallbacks(run_copy):
    last_weights = shoestring.evaluate(run_copy / "light")
    shutil.rmtree(run_copy / "best")
    assert shoestring.evaluate(run_copy).metrics == last_weights.metrics
    shutil.rmtree(run_copy / "light")
    result = shoestring.evaluate(run_copy)
    newest = max((run_copy / "checkpoints").glob("update-*"))
    assert (result.weights, result.metrics) == (str(newest), last_weights.metrics)
    assert result.update == int(newest.name.removeprefix("update-"))
    assert shoestring.evaluate(newest).metrics == last_weights.metrics


def test_optimizer_file_is_not_read(run_copy):
    newest = max((run_copy / "checkpoints").glob("update-*"))
    expected = shoestring.evaluate(newest).metrics
    (newest / "optimizer.safetensors").write_bytes(b"no optimizer")
    assert shoestring.evaluate(newest).metrics == expected
    (newest / "optimizer.safetensors").unlink()
    assert shoestring.evaluate(newest).metrics == expected


def test_no_optimizer_is_created(finished, monkeypatch):
    recipe = type(find("temporal").recipe)
    monkeypatch.setattr(recipe, "optimizer", lambda *_: pytest.fail("an optimizer was created"))
    assert shoestring.evaluate(finished).metrics


@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "manifest.json"])
def test_flipped_byte_of_a_checkpoint_is_detected(run_copy, name):
    newest = max((run_copy / "checkpoints").glob("update-*"))
    content = bytearray((newest / name).read_bytes())
    content[len(content) // 2] ^= 1
    (newest / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{name} is damaged") as error:
        shoestring.evaluate(newest)
    assert "older checkpoint" in error.value.hint


def test_damaged_best_weights_are_an_error(run_copy):
    (run_copy / "best" / "model.safetensors").write_bytes(b"\x08\x00")
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        shoestring.evaluate(run_copy)


def test_weights_of_another_model_are_an_error(finished):
    with pytest.raises(CheckpointError, match="another model"):
        shoestring.evaluate(finished, size="full")
    with pytest.raises(CheckpointError, match="another model"):
        shoestring.evaluate(max((finished / "checkpoints").glob("update-*")), size="full")


def test_other_data_adds_a_note(finished, tmp_path):
    bars = tmp_path / "bars.csv"
    bars.write_text(BARS)
    result = shoestring.evaluate(finished, data=bars)
    assert result.metrics.keys() == {"validation", "test"}
    assert result.metrics != stored_metrics(finished)
    assert result.notes[0] == f"data={bars}, but the run was trained with None"


def test_microbatch_size_changes_only_rounding(finished):
    metrics = shoestring.evaluate(finished, micro_batch=7).metrics["test"]
    assert metrics["loss"] == pytest.approx(stored_metrics(finished)["test"]["loss"], rel=1e-6)
    assert metrics["accuracy"] == stored_metrics(finished)["test"]["accuracy"]


def test_unsupported_precision_adds_a_note(run_copy):
    stored = json.loads((run_copy / "plan.json").read_text())
    stored["plan"]["settings"]["precision"] = "fp16"
    (run_copy / "plan.json").write_text(json.dumps(stored))
    result = shoestring.evaluate(run_copy, on="cpu")
    assert result.precision == "fp32" and any("does not support fp16" in note for note in result.notes)
    assert "plan.json has changed" in result.notes[0]
    assert result.metrics == stored_metrics(run_copy)


@pytest.mark.parametrize("content", ["nothing", "empty", "file", "part", "weights"])
def test_directory_without_a_run_is_invalid_usage(run_copy, tmp_path, content):
    path = tmp_path / "elsewhere"
    if content == "empty":
        path.mkdir()
    elif content == "file":
        path.write_text("")
    elif content == "part":
        path = run_copy / "checkpoints"
    elif content == "weights":  # without the run's plan the model is unknown
        shutil.copytree(run_copy / "best", path / "best")
        path = path / "best"
    with pytest.raises(UsageError, match=r"no directory|neither a run nor"):
        shoestring.evaluate(path)


def test_run_without_saved_weights_is_invalid_usage(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    planned(run, "temporal", OPTIONS, {})
    with pytest.raises(UsageError, match="no weights yet"):
        shoestring.evaluate(run)


def test_incomplete_plan_names_the_missing_keys(run_copy):
    (run_copy / "plan.json").write_text('{"recipe": "temporal"}')
    with pytest.raises(UsageError, match="lacks digest, options, plan, reference"):
        shoestring.evaluate(run_copy)


MINE = """
import torch
from torch import nn

class Mine:
    effective_batch = 4
    def model(self): return nn.Linear(3, 1)
    def batch(self, size): return torch.ones(size, 3)
    def loss(self, model, batch): return model(batch).square().mean()
    def data(self): return torch.ones(10, 3)
"""


def test_moved_recipe_can_be_passed(tmp_path):
    path, run = tmp_path / "mine.py", tmp_path / "run"
    path.write_text(MINE)
    session(str(path), run, {"micro_batch": 4})
    planned(run, str(path), {}, {"micro_batch": 4})
    evaluation = shoestring.evaluate(run)
    assert evaluation.metrics.keys() == {"train"} and evaluation.metrics["train"]["loss"] > 0
    new_folder = tmp_path / "moved"
    new_folder.mkdir()
    path.rename(new_folder / "mine.py")
    with pytest.raises(UsageError, match="not at its stored location") as error:
        shoestring.evaluate(run)
    assert "--recipe" in error.value.hint
    result = shoestring.evaluate(run, recipe=str(new_folder / "mine.py"))
    assert (result.metrics, result.notes) == (evaluation.metrics, ())
    (new_folder / "mine.py").write_text(MINE + "# changed\n")
    assert "has changed since the run started" in shoestring.evaluate(run, recipe=str(new_folder / "mine.py")).notes[0]
    with pytest.raises(UsageError, match=r"of mine\.py, not of temporal"):
        shoestring.evaluate(run, recipe="temporal")


def test_recipe_file_of_a_downloaded_run_is_not_executed(run_command, run_copy, tmp_path, monkeypatch):
    """Neither the file that its plan.json names, nor a file beside a trusted one."""
    mark = tmp_path / "executed"
    (tmp_path / "spiral.py").write_text(f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n{MINE}")
    stored = json.loads((run_copy / "plan.json").read_text())
    changed = {"reference": "spiral.py", "recipe": "spiral.py", "digest": sha256(tmp_path / "spiral.py")}
    (run_copy / "plan.json").write_text(json.dumps({**stored, **changed}))
    monkeypatch.chdir(tmp_path)
    status, out, err = run_command("evaluate", run_copy)
    assert (status, out) == (2, "") and not mark.exists()
    assert f"would execute the file {tmp_path / 'spiral.py'}" in err
    assert (
        f"hint: a run from someone else may name any file; if you trust this one, name it: --recipe {tmp_path}" in err
    )
    status, _, err = run_command("evaluate", run_copy, "--recipe", "spiral.py")
    assert mark.exists()  # the command names it


def test_trained_recipe_is_trusted_with_its_imports(run_command, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        MINE.replace("return torch.ones(10, 3)", "import helper; return helper.samples()")
    )
    (tmp_path / "helper.py").write_text("import torch\ndef samples():\n    return torch.ones(10, 3)")
    run = tmp_path / "run"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    status, _, err = run_command("train", tmp_path / "mine.py", "--run", run, "--set", "epochs=1")
    assert status == 0, err
    status, out, _ = run_command("evaluate", run)
    assert status == 0 and "train: loss" in out
    for name in ("helper.py", "mine.py"):
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(f"{text}\n")
        status, _, err = run_command("evaluate", run)
        assert status == 2 and f"changed since it was last trained with: {name}" in err
        status, out, _ = run_command("evaluate", run, "--recipe", tmp_path / "mine.py", "--json")
        assert status == 0 and f"has changed since the run started: {tmp_path / name}" in out
        status, _, err = run_command("train", tmp_path / "mine.py", "--run", run)  # a finished run
        assert status == 0 and run_command("evaluate", run)[0] == 0
        (tmp_path / name).write_text(text)


def test_recipe_of_an_ended_process_has_to_be_passed(run_copy):
    stored = json.loads((run_copy / "plan.json").read_text())
    (run_copy / "plan.json").write_text(json.dumps({**stored, "reference": ""}))
    with pytest.raises(UsageError, match="a Python process that has ended"):
        shoestring.evaluate(run_copy)


def test_out_of_memory_halves_the_microbatch(finished, monkeypatch):
    recipe = type(find("temporal").recipe)
    original, sizes = recipe.evaluate, []

    def evaluate(self, model, batches):
        def limited():
            for batch in batches:
                sizes.append(len(batch[0]))
                if sizes[-1] > 20:
                    raise MemoryError("CUDA out of memory")
                yield batch

        return original(self, model, limited())

    monkeypatch.setattr(recipe, "evaluate", evaluate)
    result = shoestring.evaluate(finished)
    assert sizes[:3] == [64, 32, 16]
    assert result.metrics["test"]["accuracy"] == stored_metrics(finished)["test"]["accuracy"]
    monkeypatch.setattr(recipe, "evaluate", _run_out_of_memory)
    with pytest.raises(RunError, match="microbatches of 1"):
        shoestring.evaluate(finished)


def _run_out_of_memory(*_):
    raise MemoryError("CUDA out of memory")


def test_short_limit_is_an_error(finished):
    with pytest.raises(RunError, match="not evaluated: session limit"):
        shoestring.evaluate(finished, limit_seconds=0.5)


def test_other_targets_are_invalid_usage(finished):
    with pytest.raises(UsageError, match="on this machine"):
        shoestring.evaluate(finished, on="kaggle-t4")


def test_result_can_be_serialized_as_json(finished):
    assert json.loads(json.dumps(asdict(shoestring.evaluate(finished))))["metrics"] == stored_metrics(finished)


def test_unknown_option_is_invalid_usage(finished):
    with pytest.raises(UsageError, match="datta"):
        shoestring.evaluate(finished, datta="x")
    assert directory_bytes(finished)


def test_weights_of_an_epoch_are_light(run_copy):
    epoch = run_copy / "light" / "update-00000007"
    shutil.copytree(run_copy / "best", epoch)
    assert shoestring.evaluate(epoch).metrics == stored_metrics(run_copy)


def test_flipped_bit_of_the_best_weights_is_detected(run_copy):
    path = run_copy / "best" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        CheckpointError, match=r"best/model\.safetensors cannot be loaded: its SHA-256 digest does not match"
    ):
        shoestring.evaluate(run_copy)


def test_weights_without_a_manifest_are_unverified(finished, run_copy):
    assert not any("not verified" in note for note in shoestring.evaluate(finished).notes)
    (run_copy / "best" / "manifest.json").unlink()
    result = shoestring.evaluate(run_copy)
    assert result.metrics == stored_metrics(run_copy)
    assert any("are not verified" in note for note in result.notes)
