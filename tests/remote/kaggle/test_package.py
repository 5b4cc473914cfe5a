"""What is sent, and what is checked before."""

import dataclasses
import json
import re
import zlib
from base64 import b64decode

import pytest

from shoestring.base.errors import UsageError
from shoestring.recipe.finding import choose, choose_attached
from shoestring.remote.kaggle import starting
from shoestring.remote.kaggle.package import make_job, package_files, parse_data, training_data
from shoestring.remote.kaggle.preflight import check_recipe
from shoestring.remote.kaggle.starting import StartRequest, _with_absolute_recipe
from tests.remote.kaggle.memory_kaggle import make_state

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
    job = make_job(choose(str(recipe), {})[0], state)  # which has no option for them
    files = {name: zlib.decompress(b64decode(text)).decode() for name, text in job.config["files"].items()}
    assert files == {"recipe/mine.py": RECIPE, "recipe/helper.py": "WIDTH = 3\n"}
    assert job.config["recipe"] == "recipe/mine.py" and job.datasets == ("me/prices", "me/more")
    assert job.config["inputs"] == {}


def test_options_in_datasets_become_paths_of_the_session():
    state = make_state()
    state.recipe, state.data = "cloud", ["me/more"]
    state.set = {"size": "tiny", "data": "me/tiles", "table": "me/tables:a/data.csv", "epochs": "2"}
    job = make_job(choose_attached("cloud", state.set)[0], state)
    assert job.config["set"] == {"size": "tiny", "epochs": "2"}
    assert job.config["inputs"] == {
        "data": {"dataset": "me/tiles", "path": "."},
        "table": {"dataset": "me/tables", "path": "a/data.csv"},
    }
    assert job.datasets == ("me/more", "me/tiles", "me/tables")


def test_package_is_the_same_for_the_same_files():
    files, digest = package_files({"x.whl": b"x"})
    listed = json.loads(files["shoestring-package.json"])
    assert (listed["digest"], set(listed["files"])) == (digest, set(files) - {"shoestring-package.json"})
    assert package_files({"x.whl": b"x"})[1] == digest != package_files()[1]


def test_package_has_the_wheels_of_what_the_image_lacks_with_these_options(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("bitsandbytes==0.50.2", "gguf==0.19.0", "trl==1.16.0"):
        for python in ("3.11", "3.12"):
            folder = tmp_path / "shoestring" / "wheels" / f"{name}-py{python}"
            folder.mkdir(parents=True)
            (folder / f"{name.replace('==', '-')}-{python}.whl").touch()
    state = make_state()
    for options, wheels in (({}, {"gguf"}), ({"lora_r": 4, "quantization": "nf4"}, {"gguf", "bitsandbytes"})):
        state.recipe = "finetune"
        job = make_job(choose("finetune", {"size": "tiny", **options})[0], state)
        sent = {name for name in job.package if name.endswith(".whl") and not name.startswith("shoestring-")}
        assert {name.partition("-")[0] for name in sent} == wheels and all(name.endswith("3.12.whl") for name in sent)
        assert ("bitsandbytes" in job.config["extras"]) is ("bitsandbytes" in wheels)
        assert job.config["python"] == "3.12"
        assert (job.config["needs_gpu"], job.config["arguments"]) == (True, [])
    assert (job.accelerator, job.config["output_bytes"]) == ("NvidiaTeslaT4", 19_500_000_000)
    state.allow_cpu, state.on = True, "kaggle-l4x4"
    job = make_job(choose("finetune", {"size": "tiny"})[0], state)
    assert (job.config["needs_gpu"], job.config["arguments"]) == (False, ["--allow-cpu"])
    assert (job.accelerator, job.config["on"]) == ("NvidiaL4", "kaggle-l4x4")


def test_wheels_that_cannot_be_downloaded_are_notes_or_an_error_without_internet(tmp_path, monkeypatch):
    monkeypatch.setattr(starting, "download_wheels", lambda answer: [f"no wheel of {answer.lacks[0].pin}"])
    loaded, _ = choose("legal", {"size": "tiny"})
    request = StartRequest(run=tmp_path, recipe="legal", values={})
    notes = []
    starting._download_wheels(request, loaded, notes.append)
    assert notes[0] == "Kaggle's image lacks nupunkt==0.8.0: sent as wheels"
    assert notes[1:] == ["no wheel of nupunkt==0.8.0; sessions need internet for it"]
    with pytest.raises(UsageError, match="sessions without internet need wheels") as error:
        starting._download_wheels(dataclasses.replace(request, internet=False), loaded, notes.append)
    assert list(error.value.problems) == ["no wheel of nupunkt==0.8.0"]


def test_data_of_the_command():
    sources = parse_data(["me/one", "me/two:a/b.csv"])
    assert training_data(sources).dataset == "me/two" and training_data(sources[:1]).dataset == "me/one"
    assert training_data(parse_data(["me/one", "me/two"])) is None
    with pytest.raises(UsageError) as error:
        parse_data(["nothing", "me/two:../x"])
    assert len(error.value.problems) == 2


def test_all_problems_are_reported(recipe):
    loaded = choose(str(recipe), {})[0]
    problems = "\n".join(check_recipe(loaded, "t4", {}, ["me/other:train.csv"]))
    for words in ("--on t4", "no option data", "--data me/other only attaches it", "add --data OWNER/prices"):
        assert words in problems
    assert not check_recipe(loaded, "kaggle-t4", {}, ["me/prices", "me/other"])  # it reads them by their paths
    assert not check_recipe(choose("temporal", {})[0], "kaggle-t4", {}, ["me/other"])
    (saves,) = check_recipe(choose("temporal", {})[0], "kaggle-t4", {"save": "none"}, [])
    assert saves.startswith("save=none: a session that Kaggle ends could not be continued")
    assert "none has a path" in check_recipe(choose("temporal", {})[0], "kaggle-t4", {}, ["me/other", "me/prices"])[0]
    (outside,) = check_recipe(choose_attached("cloud", {"data": "me/tiles:../y"})[0], "kaggle-t4", {}, [])
    assert outside == "data=me/tiles:../y: ../y is not a path inside the dataset"
    (without_data,) = check_recipe(choose("temporal", {})[0], "kaggle-t4", {}, [], {"rows": "5"})
    assert without_data.startswith("rows: for the plan of data that are attached, but temporal would train its own")
    assert not check_recipe(loaded, "kaggle-t4", {}, [], {"rows": "5"})[1:]  # its data() finds the data


def test_dry_run_needs_no_account_and_no_client(run_command, recipe, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("shoestring.remote.kaggle.client.Client.__init__", None)
    recipe.write_text(RECIPE.replace("/kaggle/input", "/somewhere"))
    run = tmp_path / "run"
    status, out, _ = run_command("kaggle", "start", recipe, "--run", run, "--on", "kaggle-h100", "--dry-run", "--json")
    sent = json.loads(out)
    assert status == 0 and set(sent) == {"requests", "files", "total_bytes", "script", "plan"} and not run.exists()
    assert "CONFIG = " in sent["script"] and sent["plan"]["verdict"] == "fits"
    assert sent["total_bytes"] == sum(file["bytes"] for file in sent["files"])
    assert [request["method"] for request in sent["requests"]] == ["CreateDataset", "SaveKernel"]
    assert re.fullmatch(r"USER/run-[0-9a-f]{6}-a", sent["requests"][1]["body"]["slug"])
    assert sent["requests"][1]["body"]["machineShape"] == "NvidiaH100"
    monkeypatch.chdir(tmp_path)
    cloud = ["kaggle", "start", "cloud", "--run", run, "--dry-run", "--set", "size=tiny"]
    _, out, _ = run_command(*cloud, "--set", "data=me/tiles", "--set", "table=me/tables:data.csv")
    assert "'me/tiles', 'me/tables'" in out and "only Kaggle knows the number of rows" in out
    assert "nothing has been sent" in out
    (tmp_path / "data.csv").touch()
    status, _, err = run_command(*cloud, "--set", "data=me/tiles", "--set", "table=data.csv")
    assert (
        status == 2 and "table=data.csv: a path of this machine; in a dataset it is table=OWNER/DATASET:data.csv" in err
    )


def test_a_chain_names_the_whole_path_of_a_recipe(recipe, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    request = StartRequest(run=tmp_path / "run", recipe="mine.py:Mine", values={})
    assert _with_absolute_recipe(request).recipe == f"{recipe}:Mine"
    assert _with_absolute_recipe(dataclasses.replace(request, recipe="temporal")).recipe == "temporal"
