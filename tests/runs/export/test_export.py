"""Export of a run's weights: the folder, its card, and what happens when something is in the way."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import namedtuple
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import shoestring
from shoestring.base.errors import CheckpointError, RunError, UsageError
from shoestring.recipe.exports import Exported, Format, OnnxGraph
from shoestring.runs.export import export as exporting
from shoestring.training.run_directory.directory import RunDirectory
from tests.libraries import hide
from tests.mine import Mine

DEAD = 2**22 + 1
"""No process has this number: it is beyond the largest one of the kernel."""


class Exportable(Mine):
    """A recipe with its own format, metrics and an ONNX graph, which is `factor` times the model."""

    epochs = 2
    factor = 1.0

    def data(self):
        parts = torch.arange(60.0).reshape(20, 3) / 60
        return {"train": parts[:12], "validation": parts[12:]}

    def notes(self):
        return ["the data are in /home/someone/secret/numbers.csv"]

    def evaluate(self, model, batches):
        loss = float(torch.cat([model(batch) for batch in batches]).square().mean())
        return {"loss": loss, "loss_error": loss / 10, "majority_loss": 2 * loss}

    def save_preprocessing(self, folder):
        (folder / "scale.json").write_text("60")

    def load_preprocessing(self, folder):
        self.scale = json.loads((folder / "scale.json").read_text())

    def onnx(self, model):
        graph = nn.Sequential(model, nn.Hardtanh(-1e9, 1e9))
        with torch.no_grad():
            expected = model.weight * self.factor
        return OnnxGraph(
            module=graph,
            inputs={"numbers": {0: "batch"}},
            outputs={"score": {0: "batch"}},
            read=lambda batch: [batch],
            compute=lambda batch: [batch @ expected.T + model.bias],
            facts={"unit": "none"},
        )

    @property
    def exports(self):
        return {"deadly": Format(write=die)}


def die(model, folder, samples):
    """Write a file, then end the process as the kernel would."""
    (folder / "half.bin").write_bytes(bytes(1000))
    os.kill(os.getpid(), 9)
    return Exported(compared=[], usage="")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run with weights of two epochs, which tests must not change."""
    run = tmp_path_factory.mktemp("finished") / "run"
    assert shoestring.train(Exportable(), run=run, on="cpu", keep_light=2).status == "finished"
    return run


@pytest.fixture
def run(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


def entries(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_any_recipe_is_exported_as_safetensors(run):
    exported = shoestring.export(run, to="safetensors", recipe=Exportable())
    folder = run / "export" / "safetensors"
    assert load_file(folder / "model.safetensors").keys() == {"weight", "bias"}
    best = load_file(run / "best" / "model.safetensors")
    assert all(torch.equal(load_file(folder / "model.safetensors")[name], best[name]) for name in best)
    assert (folder / "preprocessing" / "scale.json").read_text() == "60"
    assert (exported.format, exported.path, exported.max_difference) == ("safetensors", str(folder), 0)
    assert sorted(exported.files) == sorted(entries(folder))
    assert exported.bytes == sum(map(len, entries(folder).values()))
    assert {"format", "path", "bytes", "files", "max_difference"} <= asdict(exported).keys()
    manifest = json.loads((folder / "export.json").read_text())
    assert manifest["files"].keys() == set(exported.files) - {"export.json"}
    RunDirectory(run).refuse_links()  # a run with an export is still a run
    assert shoestring.evaluate(run, recipe=Exportable()).metrics


def test_graph_of_a_recipe_is_compared_with_the_model(run, monkeypatch):
    monkeypatch.setattr(Exportable, "factor", 1.01)
    with pytest.raises(RunError, match="differs from the model by"):
        shoestring.export(run, to="onnx", recipe=Exportable())
    assert not list((run / "export").iterdir())
    monkeypatch.setattr(Exportable, "factor", 1.0)
    exported = shoestring.export(run, to="onnx", recipe=Exportable())
    assert 0 <= exported.max_difference < 1e-5
    folder = Path(exported.path)
    assert json.loads((folder / "graph.json").read_text()) == {"unit": "none"}
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    process = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.modules['shoestring'] = None\n{code}"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert (process.returncode, process.stdout) == (0, "{'score': (1, 1)}\n"), process.stderr


def test_card_has_facts_and_no_paths(run):
    exported = shoestring.export(run, to="safetensors", recipe=Exportable())
    card = (Path(exported.path) / "README.md").read_text()
    metrics = json.loads((run / "state.json").read_text())["metrics"]["validation"]
    assert (
        f"| validation | loss | {metrics['loss']:.4g} | {metrics['loss_error']:.4g} | {2 * metrics['loss']:.4g} |"
        in card
    )
    for text in ("train: 12 samples", "validation: 8 samples", "the run is finished", "numbers.csv", "Not chosen yet"):
        assert text in card
    for content in entries(Path(exported.path)).values():
        assert b"someone" not in content and str(run.parent).encode() not in content


@dataclass(frozen=True, kw_only=True)
class Places:
    """Options that are places of this machine."""

    data: Path | None = None
    near: Path | None = None
    text: str = ""
    mark: str = "</think>"


class Placed(Exportable):
    def __init__(self, options=Places()):
        self.options = options

    def model(self):
        return Line(3, 1)


class Line(nn.Linear):
    def forward(self, numbers):
        return super().forward(numbers) * 1.0


def test_exports_have_no_paths_of_this_machine(tmp_path, monkeypatch):
    """Neither those of the options, the run and the folder in which the command is given, nor those of the code."""
    monkeypatch.chdir(tmp_path)
    near = Path("unpublished_thesis") / "rows.csv"
    near.parent.mkdir()
    near.touch()
    options = {"data": tmp_path / near, "near": near, "text": "~/unpublished_thesis/rows.csv"}
    shoestring.train(Placed(), run=tmp_path / "run", on="cpu", probe=False, **options)
    for to in ("safetensors", "onnx"):
        exported = shoestring.export(tmp_path / "run", to=to, recipe=Placed())
        files = entries(Path(exported.path))
        assert "preprocessing/manifest.json" in files
        private = [str(tmp_path), near.parent.name, str(Path(__file__).parents[2]), str(Path(torch.__file__).parent)]
        for name, content in files.items():
            assert [text for text in private if text.encode() in content] == [], f"{to}: {name}"
    saved = json.loads((tmp_path / "run" / "export" / "safetensors" / "options.json").read_text())
    assert saved["mark"] == "</think>" and saved["data"] == saved["near"] == saved["text"] == "rows.csv"


@pytest.mark.parametrize("place", ["light", "light/update-00000003", "checkpoints/update-00000006"])
def test_all_weights_of_a_run_are_exported(run, place):
    state = RunDirectory(run).state()
    replace(state, status="paused", update=5, total_updates=9).write(run / "state.json")
    (run / "light" / "manifest.json").unlink()
    exported = shoestring.export(run / place, to="safetensors", recipe=Exportable())
    assert Path(exported.path) == run / "export" / "safetensors"
    weights = load_file(run / place / "model.safetensors")
    written = load_file(Path(exported.path) / "model.safetensors")
    assert all(torch.equal(written[name], weights[name]) for name in ("weight", "bias"))
    card = (Path(exported.path) / "README.md").read_text()
    assert "the run is not finished: it is paused at update 5 of 9" in card
    assert ("not verified" in card) == (place == "light")


def test_an_existing_folder_is_not_replaced_unless_an_export_made_it(run, run_command, tmp_path):
    out = tmp_path / "out"
    command = ("export", run, "--to", "safetensors", "--out", out, "--recipe")
    file = tmp_path / "mine.py"
    file.write_text("from tests.runs.export.test_export import Exportable\n\nclass Exportable(Exportable):\n    pass\n")
    plan = json.loads((run / "plan.json").read_text())
    (run / "plan.json").write_text(json.dumps({**plan, "recipe": "mine.py"}))
    status, answer, _ = run_command(*command, file, "--json")
    assert (status, json.loads(answer)["path"]) == (0, str(out))
    before = entries(out)
    assert run_command(*command, file)[0] == 2
    assert entries(out) == before
    (out / "model.safetensors").write_bytes(b"damaged")
    status, screen, _ = run_command(*command, file, "--overwrite")
    assert status == 0 and "largest difference" in screen
    assert entries(out).keys() == before.keys() and entries(out)["model.safetensors"] == before["model.safetensors"]
    (out / "mine.txt").write_text("keep")
    status, _, message = run_command(*command, file, "--overwrite")
    assert status == 2 and "mine.txt" in message
    (out / "mine.txt").unlink()
    (out / "README.md").write_text("license: mine")
    status, _, message = run_command(*command, file, "--overwrite")
    assert status == 2 and "README.md has been edited" in message
    (out / "export.json").write_text("{}")
    assert run_command(*command, file, "--overwrite")[0] == 2
    shutil.rmtree(out)
    (tmp_path / "elsewhere").mkdir()
    out.symlink_to(tmp_path / "elsewhere")
    assert run_command(*command, file, "--overwrite")[0] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "mine.py", "out", "run"]


def test_an_export_in_place_of_a_run_says_how_its_weights_are_used(run, tmp_path, run_command):
    file = tmp_path / "mine.py"
    file.write_text("from tests.runs.export.test_export import Exportable\n\nclass Exportable(Exportable):\n    pass\n")
    plan = json.loads((run / "plan.json").read_text())
    (run / "plan.json").write_text(json.dumps({**plan, "recipe": "mine.py"}))
    out = tmp_path / "an export"
    shoestring.export(run, to="safetensors", recipe=str(file), out=out)
    status, _, message = run_command("evaluate", out)
    hint = next(line for line in message.splitlines() if line.startswith("hint: "))
    words = shlex.split(hint.partition(": pass ")[2].partition(", with --set")[0])
    assert status == 2 and words == [str(out), "--recipe", "mine.py"]
    assert run_command("evaluate", out, "--recipe", file)[0] == 0
    graph = shoestring.export(run, to="onnx", recipe=str(file)).path
    with pytest.raises(UsageError) as error:
        shoestring.evaluate(graph)
    assert error.value.hint.endswith("to onnx, which other libraries load: pass the run that it was made from")


def test_unusable_requests_are_refused(run, monkeypatch):
    with pytest.raises(UsageError, match="cannot be exported to huggingface") as refused:
        shoestring.export(run, to="huggingface", recipe=Exportable())
    assert refused.value.hint == "its formats are: safetensors, deadly, onnx"
    for name in ("best/out", "out", "checkpoints"):
        with pytest.raises(UsageError):
            shoestring.export(run, to="safetensors", out=run / name, recipe=Exportable())
    shutil.copytree(run / "best", run.parent / "alone")
    with pytest.raises(UsageError, match="belong to no run") as refused:
        shoestring.export(run.parent / "alone", to="safetensors", recipe=Exportable())
    assert refused.value.hint == "--out FOLDER"
    hide(monkeypatch, "onnxscript")
    with pytest.raises(UsageError, match="onnxscript") as refused:
        shoestring.export(run, to="onnx", recipe=Exportable())
    assert "[export]" in refused.value.hint
    (run / "best" / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(CheckpointError):
        shoestring.export(run, to="safetensors", recipe=Exportable())
    (run / "export").mkdir()
    shutil.rmtree(run / "export")
    (run / "export").symlink_to(run.parent)
    with pytest.raises(UsageError, match="symbolic link"):
        shoestring.export(run, to="safetensors", recipe=Exportable())


def test_space_is_known_before(run, monkeypatch):
    usage = namedtuple("usage", ["total", "used", "free"])
    needed = 16 + len("60") + exporting.SMALL_BYTES
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(10**9, 0, needed))
    with pytest.raises(RunError, match=r"needs 1\.00 MiB of disk space") as refused:
        shoestring.export(run, to="safetensors", recipe=Exportable())
    assert refused.value.problems[0] == "the weights: 16 B"
    assert not (run / "export").exists()
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(10**9, 0, 2 * needed))
    shoestring.export(run, to="safetensors", recipe=Exportable())


def test_a_kill_leaves_no_half_folder(run):
    child = os.fork()
    if not child:
        try:
            shoestring.export(run, to="deadly", recipe=Exportable())
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 9
    export = run / "export"
    assert [path.name for path in export.iterdir()] == [f".deadly.writing-{child}"]
    exported = shoestring.export(run, to="safetensors", recipe=Exportable())
    # Between the two renames of a replacement; and while writing the next one.
    Path(exported.path).rename(export / f".safetensors.replaced-{DEAD}")
    (export / f".safetensors.writing-{DEAD}").mkdir()
    with pytest.raises(UsageError, match="exists"):
        shoestring.export(run, to="safetensors", recipe=Exportable())
    assert [path.name for path in export.iterdir()] == ["safetensors"]
    shoestring.export(run, to="safetensors", recipe=Exportable(), overwrite=True)
    assert [path.name for path in export.iterdir()] == ["safetensors"]
