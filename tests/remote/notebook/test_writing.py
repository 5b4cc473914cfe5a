import json
from pathlib import Path

import nbformat
import pytest

import shoestring
from shoestring.errors import UsageError
from shoestring.remote.notebook import writing

MINE = (Path(__file__).parents[2] / "mine.py").read_text()


@pytest.mark.parametrize("recipe", [row["name"] for row in shoestring.api.recipes()])
def test_notebook_of_every_recipe_is_valid_and_small_enough_for_kaggle(recipe, tmp_path):
    written = shoestring.notebook(recipe, out=tmp_path, user="me", size="tiny")
    content = nbformat.read(tmp_path / "notebook.ipynb", 4)
    nbformat.validate(content)
    assert (tmp_path / "notebook.ipynb").stat().st_size == written.bytes < 1_000_000
    sources = "\n".join(cell.source for cell in content.cells if cell.cell_type == "code")
    for verb in ("check", "plan", "train", "report", "evaluate", "predict"):
        assert f"shoestring.{verb}(" in sources
    for cell in content.cells:
        if cell.cell_type == "code":
            compile(cell.source, "cell", "exec")


def test_metadata_is_ready_to_push(tmp_path):
    shoestring.notebook("temporal", out=tmp_path, user="me")
    metadata = json.loads((tmp_path / "kernel-metadata.json").read_text())
    assert metadata["id"] == f"me/{metadata['title']}"
    assert metadata["machine_shape"] == "NvidiaTeslaT4" and metadata["is_private"] is True
    assert (tmp_path / metadata["code_file"]).exists()


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
