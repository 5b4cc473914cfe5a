"""An update of a run is made again to the bit, and what is wrong with it is in the answer. The run is not changed."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import shoestring
from shoestring.base.errors import RunError, UsageError
from shoestring.recipe.finding import choose
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.stored import StoredPlan
from tests.by_trainer import ByTrainer
from tests.runs.replay.noisy_recipe import Noisy
from tests.sessions import session

RECIPE = Path(__file__).parent / "noisy_recipe.py"
SETTINGS = {"micro_batch": 3, "precision": "fp32", "save_every_updates": 1, "keep_checkpoints": 50}


def train(run, recipe, *, plan=None, settings=SETTINGS, kind="engine", **options):
    """Train without planning, and write the plan.json of the run."""
    session(recipe, run, {**settings, **options}, kind=kind)
    write_plan(run, plan or recipe, settings, options)


def write_plan(run, recipe, settings=SETTINGS, options={}):  # noqa: B006
    loaded, _ = choose(recipe, options)
    StoredPlan.from_recipe(loaded, {"settings": settings}).write(RunDirectory(run).plan_file)


def saved_digest(run, update):
    manifest = json.loads((run / "checkpoints" / f"update-{update:08d}" / "manifest.json").read_text())
    return manifest["files"]["model.safetensors"]["sha256"]


def only_checkpoints(run, copy, *updates):
    """Return a copy of the run with the checkpoints of these updates alone."""
    shutil.copytree(run, copy)
    for folder in (copy / "checkpoints").iterdir():
        if int(folder.name.partition("-")[2]) not in updates:
            shutil.rmtree(folder)
    return copy


def contents(run):
    return {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in sorted(run.rglob("*"))}


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run that was killed within its fifth update and continued."""
    run = tmp_path_factory.mktemp("killed") / "run"
    arguments = {"recipe": str(RECIPE), "run": str(run), "values": SETTINGS, "stop": "SIGKILL", "at": 14}
    process = subprocess.run(
        [sys.executable, "-m", "tests.sessions", json.dumps(arguments)], cwd=RECIPE.parents[3], check=False
    )
    assert process.returncode == -9
    train(run, str(RECIPE))
    return run


def test_three_updates_of_a_killed_and_continued_run_end_in_the_weights_of_the_run(killed, tmp_path):
    run = only_checkpoints(killed, tmp_path / "copy", 2, 10)
    before = contents(run)
    for update, start in ((2, 0), (5, 2), (9, 2)):  # before the kill, repeated after it, in the second epoch
        result = shoestring.replay(run, update, recipe=str(RECIPE))
        assert (result.from_checkpoint, result.weights_sha256) == (start, saved_digest(killed, update))
        assert result.stepped
        assert not result.error
        assert not result.not_finite
    assert contents(run) == before
    assert result.samples == tuple(torch.cat([torch.tensor(part["samples"]) for part in result.microbatches]).tolist())
    assert result.notes == ()
    assert shoestring.replay(killed, 10, recipe=str(RECIPE)).equals_checkpoint
    # On another device or with other settings the weights may differ, which is a note.
    changed = shoestring.replay(run, 3, recipe=str(RECIPE), precision="bf16")
    assert changed.weights_sha256 != saved_digest(killed, 3)
    assert any("precision: saved with fp32, now bf16" in note for note in changed.notes)


def test_update_without_finite_loss_names_its_samples_and_the_inputs(tmp_path, run_command):
    run, recipe = tmp_path / "run", Noisy()
    recipe.samples[17, 2] = float("nan")
    with pytest.raises(RunError, match="the loss of update") as error_info:
        session(recipe, run, SETTINGS)
    (file,) = (run / "failed").glob("update-*.json")
    failed = json.loads(file.read_text())
    command = f"shoestring replay {run} --update {failed['update']}"
    assert failed["replay"] == command
    assert command in error_info.value.hint
    write_plan(run, recipe)
    assert shlex.split(command)[-1] == str(failed["update"])
    result = shoestring.replay(run, failed["update"], recipe=recipe)
    answer = json.loads(json.dumps(result.json(), allow_nan=False))
    assert answer["samples"] == failed["samples"]
    assert answer["loss"] == "nan"
    first, *others = answer["not_finite"]
    assert (first["kind"], first["samples"], first["count"]) == ("input", [17], 1)
    kinds = list(dict.fromkeys(entry["kind"] for entry in others))
    assert kinds == ["output", "loss", "gradient", "weight"]
    assert others[0]["name"] == "0"
    (bad,) = [part for part in answer["microbatches"] if 17 in part["samples"]]
    assert bad["loss"] == "nan"
    # The command itself cannot make an object of this process.
    status, _, messages = run_command(*shlex.split(command)[1:])
    assert (status, "an object in a Python process" in messages) == (2, True)


class Overflowing(Noisy):
    """Its gradients overflow in fp16 at the first loss scales."""

    def loss(self, model, batch):
        return (model(batch) * 40).square().sum(), len(batch)


def test_overflow_in_fp16_is_repeated_as_in_the_run(tmp_path):
    run = tmp_path / "run"
    train(run, Overflowing(), settings={**SETTINGS, "precision": "fp16"})
    result = shoestring.replay(run, 1, recipe=Overflowing())
    *overflows, made = result.attempts
    assert overflows
    assert {attempt["outcome"] for attempt in overflows} == {"overflow"}
    assert made["loss_scale"] < overflows[0]["loss_scale"]
    assert {entry["attempt"] for entry in result.not_finite} == set(range(1, len(overflows) + 1))
    assert result.equals_checkpoint


class Limited(Noisy):
    """It runs out of memory with more than two samples, while a run is in its fourth update."""

    seen = 0
    limited = True

    def loss(self, model, batch):
        if self.limited and torch.is_grad_enabled() and len(batch) > 2:
            self.seen += 1
            if self.seen > 6:
                raise torch.OutOfMemoryError("CUDA out of memory")
        return super().loss(model, batch)


def test_microbatches_are_those_of_the_run(tmp_path):
    run, recipe = tmp_path / "run", Limited()
    train(run, recipe)
    recipe.limited = False
    first = only_checkpoints(run, tmp_path / "first", 0)
    sizes = {}
    for update in (3, 4, 6):
        result = shoestring.replay(first, update, recipe=recipe)
        assert result.weights_sha256 == saved_digest(run, update)
        sizes[update] = [len(part["samples"]) for part in result.microbatches]
    assert sizes == {3: [3, 3, 2], 4: [2, 2, 2, 2], 6: [2, 2, 2, 2]}


def test_run_without_earlier_checkpoint_is_replayed_from_the_seed(tmp_path, capsys):
    run = tmp_path / "run"
    train(run, Noisy(), subset=30)
    digest = saved_digest(run, 3)
    copy = only_checkpoints(run, tmp_path / "copy", 7)
    result = shoestring.replay(copy, 3, recipe=Noisy())
    assert (result.from_checkpoint, result.repeated_updates, result.weights_sha256) == (0, 2, digest)
    assert "from the seed, without a checkpoint, after 2 updates" in capsys.readouterr().err
    state = copy / "checkpoints" / "update-00000007" / "state.json"
    state.write_text(state.read_text() + " ")
    damaged = shoestring.replay(copy, 8, recipe=Noisy())
    assert (damaged.from_checkpoint, damaged.weights_sha256) == (0, saved_digest(run, 8))
    assert any("update-00000007/state.json" in note for note in damaged.notes)


class Failing(Noisy):
    """Its loss raises an exception for one sample."""

    is_failing = True

    def loss(self, model, batch):
        if self.is_failing and torch.is_grad_enabled() and (batch == self.samples[5]).all(dim=1).any():
            raise ValueError("sample 5 is wrong")
        return super().loss(model, batch)

    def describe(self, dataset, index):
        return {"first": round(float(dataset[index, 0]), 2)}


def test_failure_of_the_recipe_is_in_the_answer(tmp_path):
    run, recipe = tmp_path / "run", Failing()
    recipe.is_failing = False
    train(run, recipe)
    recipe.is_failing = True
    results = [shoestring.replay(run, update, recipe=recipe) for update in range(1, 6)]
    (failed,) = [result for result in results if result.error]
    assert 5 in failed.samples
    assert "ValueError: sample 5 is wrong" in failed.error
    assert "test_replay.py" in failed.error
    assert (failed.weights_sha256, failed.loss, failed.stepped) == (None, None, False)
    values = [{"first": round(float(recipe.samples[index, 0]), 2)} for index in failed.samples]
    assert list(failed.sample_descriptions) == values


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of the recipe's file, which the tests of the command trust."""
    run = tmp_path_factory.mktemp("finished") / "run"
    train(run, str(RECIPE))
    return run


def test_debugger_stops_in_the_loss(finished, monkeypatch, capfd):
    commands = iter(["print(len(batch))", "where", "c"])
    monkeypatch.setattr("sys.stdin", type("Lines", (), {"readline": lambda _: f"{next(commands)}\n"})())
    result = shoestring.replay(finished, 2, recipe=str(RECIPE), debug=True)
    assert result.equals_checkpoint
    output = capfd.readouterr()
    assert "noisy_recipe.py" in output.err
    assert "in loss" in output.err or "loss()" in output.err
    stops = []
    monkeypatch.setenv("PYTHONBREAKPOINT", "tests.runs.replay.test_replay.stop")
    monkeypatch.setitem(globals(), "stop", lambda: stops.append(1))
    assert shoestring.replay(finished, 2, recipe=str(RECIPE), debug=True).equals_checkpoint
    assert stops == [1]
    monkeypatch.setenv("PYTHONBREAKPOINT", "pdb.set_trace")
    monkeypatch.setattr("sys.stdin", type("Lines", (), {"readline": lambda _: "q\n"})())
    with pytest.raises(RunError, match="the debugger was left"):
        shoestring.replay(finished, 2, recipe=str(RECIPE), debug=True)


def test_command_prints_the_update(finished, run_command):
    arguments = ["replay", finished, "--update", 3, "--recipe", RECIPE]
    status, output, messages = run_command(*arguments)
    assert status == 0
    assert "equal to the run's checkpoint" in output
    assert "largest activations" in output
    assert "replaying update 3 from the checkpoint of update 2; the run is not changed" in messages
    status, output, _ = run_command(*arguments, "--json")
    answer = json.loads(output)
    assert (status, answer["update"], answer["from_checkpoint"]) == (0, 3, 2)
    assert answer["weights_sha256"] == saved_digest(finished, 3)
    assert set(answer["gradient_norms"]) == {"0", "1", "3"}
    assert answer["largest_activations"][0].keys() == {"module", "type", "value", "microbatch"}


def test_invalid_usage_is_an_error(finished, tmp_path):
    for run, update, message in (
        (tmp_path, 1, "is not the directory of a run"),
        (finished, 0, "counted from 1 to 10"),
        (finished, 11, "counted from 1 to 10"),
    ):
        with pytest.raises(UsageError, match=message):
            shoestring.replay(run, update, recipe=str(RECIPE))
    with pytest.raises(UsageError, match="on this machine, not on t4"):
        shoestring.replay(finished, 1, on="t4")
    script = tmp_path / "script"
    script.mkdir()
    StoredPlan(recipe="a trainer", settings=SETTINGS).write(script / "plan.json")
    with pytest.raises(UsageError, match="the trainer of a script"):
        shoestring.replay(script, 1)
    stranger = tmp_path / "stranger" / RECIPE.name
    stranger.parent.mkdir()
    stranger.write_text(RECIPE.read_text() + f"\nopen({str(tmp_path / 'executed')!r}, 'w')\n")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    plan = json.loads((finished / "plan.json").read_text()) | {"reference": str(stranger)}
    (foreign / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(UsageError, match="would execute the file"):
        shoestring.replay(foreign, 1)
    assert not (tmp_path / "executed").exists()


class Plain(Noisy):
    """Means over samples, as a library's trainer computes them."""

    def loss(self, model, batch):
        return model(batch).square().mean()


def test_update_of_a_trainer(tmp_path):
    run, recipe = tmp_path / "run", ByTrainer(Plain())
    train(run, Plain(), plan=recipe, kind="trainer", settings={**SETTINGS, "micro_batch": 4})
    copy = only_checkpoints(run, tmp_path / "copy", 2)
    before = contents(copy)
    for update in (2, 7):
        result = shoestring.replay(copy, update, recipe=recipe)
        assert result.weights_sha256 == saved_digest(run, update)
        assert [len(part["samples"]) for part in result.microbatches] == [4, 4]
        assert sorted(result.samples) == sorted(set(result.samples))
        assert result.gradient_norm > 0.5  # before it is clipped
        assert result.largest_activations
    assert contents(copy) == before
    recipe.samples[17] = float("nan")
    microbatches = [
        part for update in range(1, 6) for part in shoestring.replay(run, update, recipe=recipe).microbatches
    ]
    assert sorted(sample for part in microbatches for sample in part["samples"]) == list(range(40))
    assert [17 in part["samples"] for part in microbatches] == [part["loss"] != part["loss"] for part in microbatches]
    with pytest.raises(UsageError, match="no loss"):
        shoestring.replay(copy, 2, recipe=recipe, debug=True)
