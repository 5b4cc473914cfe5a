"""What is sent, and what is checked before."""

import dataclasses
import json
import re
import zlib
from base64 import b64decode

import pytest

from shoestring.errors import UsageError
from shoestring.recipe.finding import choose
from shoestring.remote.kaggle.package import make_job, package_files, parse_data, training_data
from shoestring.remote.kaggle.preflight import check_datasets, check_recipe
from shoestring.remote.kaggle.starting import StartRequest, _with_absolute_recipe
from tests.remote.kaggle.memory_kaggle import MemoryKaggle, make_state

RECIPE = """
import torch
from helper import WIDTH
DATA = "/kaggle/input/prices/train.csv"
class Mine:
    def model(self): return torch.nn.Linear(WIDTH, 1)
    def batch(self, size): return torch.zeros(size, WIDTH)
    def loss(self, model, batch): return model(batch).mean()
"""


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "helper.py").write_text("WIDTH = 3\n")
    (tmp_path / "mine.py").write_text(RECIPE)
    return tmp_path / "mine.py"


def test_recipe_file_is_sent_with_the_files_it_imports(recipe):
    state = make_state()
    state.recipe, state.data = str(recipe), ["me/prices:train.csv", "me/more"]
    job = make_job(choose(str(recipe), {})[0], state)
    files = {name: zlib.decompress(b64decode(text)).decode() for name, text in job.config["files"].items()}
    assert files == {"recipe/mine.py": RECIPE, "recipe/helper.py": "WIDTH = 3\n"}
    assert job.config["recipe"] == "recipe/mine.py" and job.datasets == ("me/prices", "me/more")
    assert job.config["data"] == {"dataset": "me/prices", "path": "train.csv"}


def test_package_is_the_same_for_the_same_files():
    files, digest = package_files({"x.whl": b"x"})
    listed = json.loads(files["shoestring-package.json"])
    assert (listed["digest"], set(listed["files"])) == (digest, set(files) - {"shoestring-package.json"})
    assert package_files({"x.whl": b"x"})[1] == digest != package_files()[1]


def test_data_of_the_command():
    sources = parse_data(["me/one", "me/two:a/b.csv"])
    assert training_data(sources).dataset == "me/two" and training_data(sources[:1]).dataset == "me/one"
    assert training_data(parse_data(["me/one", "me/two"])) is None
    with pytest.raises(UsageError) as error:
        parse_data(["nothing", "me/two:../x"])
    assert len(error.value.problems) == 2


def test_all_problems_are_reported(recipe):
    loaded = choose(str(recipe), {})[0]
    problems = "\n".join(check_recipe(loaded, "t4", {"data": "x"}, parse_data(["me/other:train.csv"])))
    for words in ("--on t4", "no option data", "--data me/other gives the option data", "add --data OWNER/prices"):
        assert words in problems
    assert not check_recipe(choose("temporal", {})[0], "kaggle-t4", {}, parse_data(["me/other"]))
    kaggle = MemoryKaggle()
    kaggle.datasets["me/there"] = {"folder/train.csv": 1}
    sources = parse_data(["me/there:folder", "me/there:test.csv", "me/missing"])
    wrong_path, missing = check_datasets(kaggle, sources)
    assert "it has folder/train.csv" in wrong_path and "no such dataset" in missing


def test_dry_run_needs_no_account_and_no_client(run_command, recipe, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("shoestring.remote.kaggle.client.Client.__init__", None)
    recipe.write_text(RECIPE.replace("/kaggle/input", "/somewhere"))
    run = tmp_path / "run"
    status, out, _ = run_command("kaggle", "start", recipe, "--run", run, "--set", "epochs=2", "--dry-run", "--json")
    sent = json.loads(out)
    assert status == 0 and set(sent) == {"requests", "files", "total_bytes"} and not run.exists()
    assert sent["total_bytes"] == sum(file["bytes"] for file in sent["files"])
    assert [request["method"] for request in sent["requests"]] == ["CreateDataset", "SaveKernel"]
    assert re.fullmatch(r"USER/run-[0-9a-f]{6}-a", sent["requests"][1]["body"]["slug"])
    _, out, _ = run_command("kaggle", "start", recipe, "--run", run, "--dry-run")
    assert "nothing has been sent" in out


def test_a_chain_names_the_whole_path_of_a_recipe(recipe, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    request = StartRequest(run=tmp_path / "run", recipe="mine.py:Mine", values={})
    assert _with_absolute_recipe(request).recipe == f"{recipe}:Mine"
    assert _with_absolute_recipe(dataclasses.replace(request, recipe="temporal")).recipe == "temporal"
