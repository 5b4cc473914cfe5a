import importlib.metadata
import io
import json
import types
import zipfile
from pathlib import Path

import nbformat
import pytest

import shoestring
from shoestring.base.errors import UsageError
from shoestring.remote.notebook import writing
from shoestring.remote.wheel import build_wheel
from tests.slow import slow_except

MINE = (Path(__file__).parents[2] / "mine.py").read_text()


@pytest.mark.parametrize("recipe", slow_except([row["name"] for row in shoestring.api.recipes()], "finetune"))
def test_notebook_of_every_recipe_is_valid_and_small_enough_for_kaggle(recipe, tmp_path):
    written = shoestring.notebook(recipe, out=tmp_path, user="me", size="tiny")
    content = nbformat.read(tmp_path / "notebook.ipynb", 4)
    nbformat.validate(content)
    assert (tmp_path / "notebook.ipynb").stat().st_size == written.bytes < 1_040_000
    sources = "\n".join(cell.source for cell in content.cells if cell.cell_type == "code")
    for verb in ("check", "plan", "train", "report", "evaluate", "predict"):
        assert f"shoestring.{verb}(" in sources
    for cell in content.cells:
        if cell.cell_type == "code":
            compile(cell.source, "cell", "exec")


@pytest.mark.parametrize(
    ("on", "machine_shape"),
    [("kaggle-t4x2", "NvidiaTeslaT4"), ("kaggle-a100", "NvidiaTeslaA100"), ("colab-t4", "NvidiaTeslaT4")],
)
def test_metadata_is_ready_to_push(tmp_path, on, machine_shape):
    shoestring.notebook("temporal", on, out=tmp_path, user="me")
    metadata = json.loads((tmp_path / "kernel-metadata.json").read_text())
    assert metadata["id"] == f"me/{metadata['title']}"
    assert metadata["machine_shape"] == machine_shape and metadata["is_private"] is True
    assert (tmp_path / metadata["code_file"]).exists()


@pytest.mark.parametrize("user", ["../x", "", "me/other", "me\n", "-x"])
def test_user_is_the_name_of_an_account(tmp_path, user):
    with pytest.raises(UsageError, match="not the name of an account on Kaggle"):
        shoestring.notebook("temporal", out=tmp_path, user=user)
    assert not list(tmp_path.iterdir())


def test_options_that_stand_for_data_in_plans_are_not_written(tmp_path):
    shoestring.notebook("legal", out=tmp_path / "a", rows="500", epochs="2", data="/kaggle/input/law")
    text = (tmp_path / "a" / "notebook.ipynb").read_text()
    assert "OPTIONS = {'epochs': '2', 'data': '/kaggle/input/law'}" in text  # and no rows
    with pytest.raises(UsageError, match="options of legal cannot be used"):
        shoestring.notebook("legal", out=tmp_path / "b", rows="0")
    with pytest.raises(UsageError, match=r"lengths=\S+no\.json: cannot be read"):
        shoestring.notebook("legal", out=tmp_path / "b", lengths="no.json")
    assert not (tmp_path / "b").exists()


def test_options_in_datasets_attach_them(tmp_path):
    options = {"size": "tiny", "data": "me/tiles", "table": "me/tables:data.csv", "rows": "500"}
    shoestring.notebook("cloud", out=tmp_path / "a", **options)
    metadata = json.loads((tmp_path / "a" / "kernel-metadata.json").read_text())
    assert metadata["dataset_sources"] == ["me/tiles", "me/tables"]
    text = (tmp_path / "a" / "notebook.ipynb").read_text()
    assert "OPTIONS = {'size': 'tiny'}" in text
    assert "OPTIONS['table'] = session.attached_path('me/tables:data.csv')" in text
    shoestring.notebook("temporal", out=tmp_path / "c", data="me/bars:bars.csv", rows="500")
    command = "shoestring kaggle start cloud --run runs/cloud --set size=tiny --set data=me/tiles --set table=me/tables"
    assert command in text
    predicting = [f'shoestring.predict(RUN, {data}bars="latest"' for data in ('data=OPTIONS["data"], ', "")]
    cells = "".join(cell.source for cell in nbformat.read(tmp_path / "c" / "notebook.ipynb", 4).cells)
    assert [text in cells for text in predicting] == [True, False]
    with pytest.raises(UsageError, match="only a session on Kaggle has a dataset"):
        shoestring.notebook("cloud", "colab-t4", out=tmp_path / "b", **options)
    with pytest.raises(UsageError) as error:
        shoestring.notebook("cloud", out=tmp_path / "b", data=str(tmp_path))
    assert "a path of this machine" in error.value.problems[0]


def test_files_of_a_recipe_of_ones_own_are_written_by_a_cell(tmp_path):
    recipe = tmp_path / "mine.py"
    recipe.write_text(MINE)
    shoestring.notebook(str(recipe), "colab-t4", out=tmp_path / "out")
    content = nbformat.read(tmp_path / "out" / "notebook.ipynb", 4)
    assert any(cell.source == f"%%writefile mine.py\n{MINE}" for cell in content.cells)
    assert content.metadata["accelerator"] == "GPU"


def test_files_in_folders_and_a_class_have_usable_paths(tmp_path, monkeypatch):
    recipe = tmp_path / "mine.py"
    recipe.write_text("import tools.numbers\n" + MINE)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "numbers.py").write_text("ONE = 1\n")
    shoestring.notebook(f"{recipe}:Mine", out=tmp_path / "out")
    sources = [cell.source for cell in nbformat.read(tmp_path / "out" / "notebook.ipynb", 4).cells]
    position = sources.index("%%writefile tools/numbers.py\nONE = 1\n")
    monkeypatch.chdir(tmp_path / "out")
    exec(next(source for source in sources[:position] if "mkdir" in source))
    assert (tmp_path / "out" / "tools").is_dir()
    assert any("session.run_directory('mine.py-Mine', 'kaggle')" in source for source in sources)


def test_existing_files_and_other_targets_are_refused(tmp_path):
    with pytest.raises(UsageError, match="notebooks are written for Kaggle and Colab"):
        shoestring.notebook("temporal", "a100-80", out=tmp_path)
    (tmp_path / "kernel-metadata.json").write_text("{}")
    with pytest.raises(UsageError, match=r"kernel-metadata\.json exists"):
        shoestring.notebook("temporal", out=tmp_path)
    assert not (tmp_path / "notebook.ipynb").exists()


def test_a_notebook_that_is_too_large_names_the_largest_files(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "MAX_BYTES", 1000)
    recipe = tmp_path / "mine.py"
    recipe.write_text(MINE)
    with pytest.raises(UsageError, match="Kaggle takes at most") as error:
        shoestring.notebook(str(recipe), out=tmp_path / "out")
    assert any("mine.py" in problem for problem in error.value.problems)


def install_cell(folder):
    """The source of the cell that installs, without its last lines, which call it."""
    cells = nbformat.read(folder / "notebook.ipynb", 4).cells
    source = next(cell.source for cell in cells if "def install()" in cell.source)
    return source[: source.index("\ninstall()\n")]


def files_of(wheel):
    """The files of a wheel, its list of them included."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture
def install(monkeypatch, tmp_path):
    """Run the cell of a notebook on an invented machine, which pip changes; return pip's commands and constraints."""

    def run(folder, installed, recipes=("temporal",)):
        site = tmp_path / "site" / "shoestring"
        site.mkdir(parents=True)
        commands, constraints = [], []
        required = [
            "torch>=2.10",
            "trl>=1.10; extra == 'chart'",
            'nupunkt>=0.7; extra == "legal"',
            "no; extra == 'cloud'",
        ]

        def version(name):
            if name not in installed:
                raise importlib.metadata.PackageNotFoundError(name)
            return installed[name]

        def run_pip(command, *, check=False):
            assert check or "--find-links" in command
            commands.append(command[3:])
            if "--force-reinstall" in command:
                assert files_of(Path(command[-1]).read_bytes()) == files_of(build_wheel(recipes))
            installed.update(text.split("==") for text in command if "==" in text)
            if "--constraint" in command:
                constraints.extend(Path(command[command.index("--constraint") + 1]).read_text().split())

        def find_spec(_name):
            # Before, as where the current folder has a folder of this name: it can be imported, and has no file.
            return types.SimpleNamespace(origin=str(site / "__init__.py") if commands else None)

        namespace = {}
        exec(install_cell(folder), namespace)
        error = importlib.metadata.PackageNotFoundError
        namespace["importlib"] = types.SimpleNamespace(
            metadata=types.SimpleNamespace(version=version, PackageNotFoundError=error, requires=lambda name: required),
            util=types.SimpleNamespace(find_spec=find_spec),
            invalidate_caches=lambda: None,
        )
        namespace["subprocess"] = types.SimpleNamespace(run=run_pip)
        namespace["install"]()
        return commands, constraints

    monkeypatch.setenv("SHOESTRING_KAGGLE_ROOT", str(tmp_path / "kaggle"))
    return run


def test_install_cell_takes_tested_versions_of_what_the_machine_lacks(install, tmp_path):
    shoestring.notebook("chart", out=tmp_path / "out", size="tiny", quantization="nf4")
    # The image is newer than the table, and has another version of pyarrow that is enough.
    installed = {"torch": "2.10.0+cu128", "datasets": "4.0.0", "pyarrow": "22.0"}
    (own, online), constraints = install(tmp_path / "out", installed, ["chart"])
    assert constraints == ["torch==2.10.0+cu128", "bitsandbytes==0.50.2", "trl==1.16.0", "datasets==5.0.1"]
    assert "--no-deps" in own and "--no-index" in own
    assert "--no-index" not in online and online[-1].endswith(".whl[bitsandbytes,chart]")


def test_install_cell_asks_no_index_for_a_complete_machine(install, tmp_path):
    shoestring.notebook("temporal", out=tmp_path / "out")
    assert "allow_cpu=True" not in (tmp_path / "out" / "notebook.ipynb").read_text()
    (own,), constraints = install(tmp_path / "out", {"torch": "2.10.0"})
    assert "--no-index" in own and not constraints


def test_install_cell_installs_what_the_image_has_lost(install, tmp_path):
    shoestring.notebook("temporal", out=tmp_path / "out")
    (_, online), constraints = install(tmp_path / "out", {"torch": "2.5.0"})
    assert constraints == ["torch==2.5.0"] and online[-1].endswith(".whl[temporal]")


def test_install_cell_on_colab(install, tmp_path):
    """Where no dataset is attached, nor any folder for one is there."""
    shoestring.notebook("temporal", "colab-t4", out=tmp_path / "out", allow_cpu=True)
    assert "on=TARGET, allow_cpu=True, " in (tmp_path / "out" / "notebook.ipynb").read_text()
    _, constraints = install(tmp_path / "out", {"torch": "2.11.0+cu128"})
    assert constraints == ["torch==2.11.0+cu128", "torchmetrics==1.9.0", "lightning-utilities==0.15.3"]


def test_notebook_without_internet_has_the_wheels_as_a_dataset(install, tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "download_wheels", lambda answer: [])
    monkeypatch.setattr(
        writing, "cached_wheels", lambda answer: {f"{package.name}.whl": b"x" for package in answer.lacks}
    )
    out = tmp_path / "out"
    written = shoestring.notebook("legal", out=out, user="me", internet=False, size="tiny")
    metadata = json.loads((out / "kernel-metadata.json").read_text())
    assert (metadata["enable_internet"], metadata["dataset_sources"]) == (False, ["me/shoestring-legal-wheels"])
    dataset = json.loads((out / "wheels" / "dataset-metadata.json").read_text())
    assert dataset["id"] == "me/shoestring-legal-wheels" and written.wheels == str(out / "wheels")
    assert {path.name for path in (out / "wheels").glob("*.whl")} == {"nupunkt.whl"}
    mounted = tmp_path / "kaggle" / "input" / "datasets" / "me" / "shoestring-legal-wheels"
    mounted.mkdir(parents=True)
    (out / "wheels" / "nupunkt.whl").rename(mounted / "nupunkt.whl")
    (_, offline), constraints = install(out, {"torch": "2.10.0"}, ["legal"])
    assert offline[-3:] == ["--find-links", str(mounted), "nupunkt==0.8.0"] and "--no-index" in offline
    assert not constraints


def test_notebook_without_internet_is_refused_without_wheels_and_on_colab(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "download_wheels", lambda answer: ["no wheel of nupunkt==0.8.0: no index"])
    with pytest.raises(UsageError, match="need wheels of what Kaggle's image lacks") as error:
        shoestring.notebook("legal", out=tmp_path, internet=False)
    assert list(error.value.problems) == ["no wheel of nupunkt==0.8.0: no index"] and not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match="only sessions of Kaggle"):
        shoestring.notebook("temporal", "colab-t4", out=tmp_path, internet=False)
    # Nothing is lacking, so nothing is attached.
    monkeypatch.setattr(writing, "download_wheels", lambda answer: [])
    assert shoestring.notebook("temporal", out=tmp_path, internet=False).wheels == ""
    assert json.loads((tmp_path / "kernel-metadata.json").read_text())["dataset_sources"] == []
