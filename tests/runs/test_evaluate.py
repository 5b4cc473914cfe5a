"""The metrics of saved weights: those that the run itself found, from the model's bytes alone."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import shoestring
from shoestring.checkpoint.files import directory_bytes, sha256
from shoestring.errors import CheckpointError, RunError, UsageError
from shoestring.recipe.finding import choose, find
from shoestring.session.directory import RunDirectory
from shoestring.session.stored import StoredPlan
from tests.sessions import session

OPTIONS = {"size": "tiny", "epochs": 2, "effective_batch": 64, "seq_len": 10}
ROWS = [(day, 10 + day % 7) for day in range(330)]
BARS = "time,open,high,low,close,volume\n" + "".join(
    f"2020-{day // 28 + 1:02d}-{day % 28 + 1:02d},{low + 1},{low + 3},{low},{low + 2},{1000 + day}\n"
    for day, low in ROWS
)


def planned(run: Path, recipe: str | object, values: dict, settings: dict) -> None:
    """The plan.json of a run whose session did not plan."""
    loaded, _ = choose(recipe, values)
    plan = StoredPlan.of(loaded, {"settings": {"micro_batch": 64, "precision": "fp32", **settings}})
    options = {**plan.options, "data": None} if "data" in plan.options else plan.options
    replace(plan, options=options).write(RunDirectory(run).plan_file)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of `temporal` that is finished; not to be changed."""
    run = tmp_path_factory.mktemp("finished") / "run"
    session("temporal", run, {**OPTIONS, "micro_batch": 64})
    planned(run, "temporal", OPTIONS, {})
    return run


@pytest.fixture
def copied(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


def found_by(run):
    return json.loads((run / "state.json").read_text())["metrics"]


def everything(run):
    return {path: (sha256(path), path.stat().st_mtime_ns) for path in sorted(run.rglob("*")) if path.is_file()}


def test_a_runs_best_weights_have_the_metrics_that_the_run_found_and_nothing_is_written(finished):
    before = everything(finished)
    found = shoestring.evaluate(finished)
    assert found.metrics == found_by(finished)
    assert (found.weights, found.recipe) == (str(finished / "best"), "temporal")
    assert everything(finished) == before


def test_what_the_recipe_says_of_its_data_is_told_after_they_were_read(finished, monkeypatch):
    recipe = type(find("temporal").recipe)
    read = []
    data = recipe.data
    monkeypatch.setattr(recipe, "data", lambda self: read.append(1) or data(self))
    monkeypatch.setattr(recipe, "notes", lambda _: [f"the data were read {len(read)} times"], raising=False)
    assert shoestring.evaluate(finished).notes == ("the data were read 1 times",)


def test_without_best_the_last_weights_count_and_without_those_the_newest_checkpoints(copied):
    last = shoestring.evaluate(copied / "light")
    shutil.rmtree(copied / "best")
    assert shoestring.evaluate(copied).metrics == last.metrics
    shutil.rmtree(copied / "light")
    found = shoestring.evaluate(copied)
    newest = max((copied / "checkpoints").glob("update-*"))
    assert (found.weights, found.metrics) == (str(newest), last.metrics)
    assert found.update == int(newest.name.removeprefix("update-"))
    assert shoestring.evaluate(newest).metrics == last.metrics


def test_the_optimizers_file_is_neither_needed_nor_read(copied):
    newest = max((copied / "checkpoints").glob("update-*"))
    expected = shoestring.evaluate(newest).metrics
    (newest / "optimizer.safetensors").write_bytes(b"no optimizer")
    assert shoestring.evaluate(newest).metrics == expected
    (newest / "optimizer.safetensors").unlink()
    assert shoestring.evaluate(newest).metrics == expected


def test_no_optimizer_is_made(finished, monkeypatch):
    recipe = type(find("temporal").recipe)
    monkeypatch.setattr(recipe, "optimizer", lambda *_: pytest.fail("an optimizer was made"))
    assert shoestring.evaluate(finished).metrics


@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "manifest.json"])
def test_a_flipped_byte_of_a_checkpoint_is_found(copied, name):
    newest = max((copied / "checkpoints").glob("update-*"))
    content = bytearray((newest / name).read_bytes())
    content[len(content) // 2] ^= 1
    (newest / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{name} is damaged") as error:
        shoestring.evaluate(newest)
    assert "older checkpoint" in error.value.hint


def test_damaged_weights_alone_are_an_error(copied):
    (copied / "best" / "model.safetensors").write_bytes(b"\x08\x00")
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        shoestring.evaluate(copied)


def test_weights_of_another_model_are_an_error(finished):
    with pytest.raises(CheckpointError, match="another model"):
        shoestring.evaluate(finished, size="full")
    with pytest.raises(CheckpointError, match="another model"):
        shoestring.evaluate(max((finished / "checkpoints").glob("update-*")), size="full")


def test_other_data_are_said_to_be_others(finished, tmp_path):
    bars = tmp_path / "bars.csv"
    bars.write_text(BARS)
    found = shoestring.evaluate(finished, data=bars)
    assert found.metrics.keys() == {"validation", "test"}
    assert found.metrics != found_by(finished)
    assert found.notes[0] == f"data={bars}, the run has None"


def test_any_size_of_microbatch_gives_the_same_metrics_but_for_rounding(finished):
    found = shoestring.evaluate(finished, micro_batch=7).metrics["test"]
    assert found["loss"] == pytest.approx(found_by(finished)["test"]["loss"], rel=1e-6)
    assert found["accuracy"] == found_by(finished)["test"]["accuracy"]


def test_a_precision_that_is_not_here_is_said(copied):
    stored = json.loads((copied / "plan.json").read_text())
    stored["plan"]["settings"]["precision"] = "fp16"
    (copied / "plan.json").write_text(json.dumps(stored))
    found = shoestring.evaluate(copied, on="cpu")
    assert found.precision == "fp32" and "fp16" in found.notes[0]
    assert found.metrics == found_by(copied)


@pytest.mark.parametrize("what", ["nothing", "empty", "file", "part", "weights"])
def test_a_directory_that_is_no_run_is_a_question_that_cannot_be_answered(copied, tmp_path, what):
    where = tmp_path / "elsewhere"
    if what == "empty":
        where.mkdir()
    elif what == "file":
        where.write_text("")
    elif what == "part":
        where = copied / "checkpoints"
    elif what == "weights":  # without the run's plan nobody knows what model they are of
        shutil.copytree(copied / "best", where / "best")
        where = where / "best"
    with pytest.raises(UsageError, match=r"no directory|neither a run nor"):
        shoestring.evaluate(where)


def test_a_run_that_has_saved_nothing_says_so(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    planned(run, "temporal", OPTIONS, {})
    with pytest.raises(UsageError, match="no weights yet"):
        shoestring.evaluate(run)


def test_a_plan_that_lacks_what_is_needed_says_what(copied):
    (copied / "plan.json").write_text('{"recipe": "temporal"}')
    with pytest.raises(UsageError, match="lacks digest, options, plan, reference"):
        shoestring.evaluate(copied)


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


def test_a_recipe_that_has_moved_is_asked_for_and_can_be_given(tmp_path):
    path, run = tmp_path / "mine.py", tmp_path / "run"
    path.write_text(MINE)
    session(str(path), run, {"micro_batch": 4})
    planned(run, str(path), {}, {"micro_batch": 4})
    here = shoestring.evaluate(run)
    assert here.metrics.keys() == {"train"} and here.metrics["train"]["loss"] > 0
    moved = tmp_path / "there"
    moved.mkdir()
    path.rename(moved / "mine.py")
    with pytest.raises(UsageError, match="not at its stored location") as error:
        shoestring.evaluate(run)
    assert "--recipe" in error.value.hint
    found = shoestring.evaluate(run, recipe=str(moved / "mine.py"))
    assert (found.metrics, found.notes) == (here.metrics, ())
    (moved / "mine.py").write_text(MINE + "# changed\n")
    assert "not as it was" in shoestring.evaluate(run, recipe=str(moved / "mine.py")).notes[0]
    with pytest.raises(UsageError, match=r"of mine\.py, not of temporal"):
        shoestring.evaluate(run, recipe="temporal")


def test_a_recipe_of_a_process_that_is_gone_is_asked_for(copied):
    stored = json.loads((copied / "plan.json").read_text())
    (copied / "plan.json").write_text(json.dumps({**stored, "reference": ""}))
    with pytest.raises(UsageError, match="a Python process that has ended"):
        shoestring.evaluate(copied)


def test_memory_that_runs_out_means_smaller_microbatches(finished, monkeypatch):
    recipe = type(find("temporal").recipe)
    own, sizes = recipe.evaluate, []

    def evaluate(self, model, batches):
        def watched():
            for batch in batches:
                sizes.append(len(batch[0]))
                if sizes[-1] > 20:
                    raise MemoryError("CUDA out of memory")
                yield batch

        return own(self, model, watched())

    monkeypatch.setattr(recipe, "evaluate", evaluate)
    found = shoestring.evaluate(finished)
    assert sizes[:3] == [64, 32, 16]
    assert found.metrics["test"]["accuracy"] == found_by(finished)["test"]["accuracy"]
    monkeypatch.setattr(recipe, "evaluate", _always_full)
    with pytest.raises(RunError, match="microbatches of 1"):
        shoestring.evaluate(finished)


def _always_full(*_):
    raise MemoryError("CUDA out of memory")


def test_a_limit_that_is_too_short_is_an_error_not_a_part_of_the_metrics(finished):
    with pytest.raises(RunError, match="not evaluated: session limit"):
        shoestring.evaluate(finished, limit_seconds=0.5)


def test_only_this_machine_evaluates(finished):
    with pytest.raises(UsageError, match="on this machine"):
        shoestring.evaluate(finished, on="kaggle-t4")


def test_the_answer_is_json(finished):
    assert json.loads(json.dumps(asdict(shoestring.evaluate(finished))))["metrics"] == found_by(finished)


def test_a_bad_option_is_a_question(finished):
    with pytest.raises(UsageError, match="datta"):
        shoestring.evaluate(finished, datta="x")
    assert directory_bytes(finished)


def test_the_weights_of_an_epoch_are_no_full_checkpoint(copied):
    epoch = copied / "light" / "update-00000007"
    shutil.copytree(copied / "best", epoch)
    assert shoestring.evaluate(epoch).metrics == found_by(copied)


def test_one_flipped_bit_of_the_best_weights_is_found(copied):
    path = copied / "best" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"best/model\.safetensors cannot be loaded: its SHA-256 digest does not"):
        shoestring.evaluate(copied)


def test_weights_without_a_manifest_are_said_to_be_unverified(finished, copied):
    assert not any("not verified" in note for note in shoestring.evaluate(finished).notes)
    (copied / "best" / "manifest.json").unlink()
    answer = shoestring.evaluate(copied)
    assert answer.metrics == found_by(copied)
    assert any("are not verified" in note for note in answer.notes)
