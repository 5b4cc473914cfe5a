"""The generated notebook of each guide, with data in the guide's format where Kaggle mounts them, executed whole."""

import json
import shutil

import nbformat
import pytest
from benchmarks.notebook.run import clean_environment, execute, make_environment

import shoestring
from tests.docs import guide_data

DATASETS = {
    "vqa": {"data": ("vqa", "me/vqa-teacher")},
    "legal": {"data": ("judgments", "me/legal-judgments")},
    "temporal": {"data": ("bars", "me/price-bars:merged_M15_multiTF.csv")},
    "chart": {"data": ("charts", "me/chart-questions")},
    "cloud": {"data": ("tiles", "me/cloud-tiles"), "table": ("tables", "me/cloud-tables:data.csv")},
}
"""The folders of `guide_data`, and the values of the options, by recipe and option."""

OPTIONS = {
    "vqa": {"epochs": "1"},
    "legal": {"epochs": "1"},
    "temporal": {"epochs": "2"},
    "chart": {"max_updates": "2", "completion_len": "16"},
    "cloud": {"epochs": "1"},
}

NEW = {"vqa": "new/questions.jsonl", "legal": "new.txt", "temporal": "today.csv", "chart": "new", "cloud": "new"}


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The Python of an environment with the packages of this one, but without Shoestring."""
    return make_environment(tmp_path_factory.mktemp("image") / "environment")


@pytest.mark.slow
@pytest.mark.parametrize("recipe", DATASETS)
def test_all_cells_run_with_the_attached_data(recipe, python, tmp_path):
    getattr(guide_data, f"write_{recipe}")(tmp_path)
    for folder, value in DATASETS[recipe].values():
        mounted = tmp_path / "kaggle" / "input" / "datasets" / value.partition(":")[0]
        shutil.copytree(tmp_path / folder, mounted)
        shutil.rmtree(tmp_path / folder)  # the laptop's copy
    options = {option: value for option, (_, value) in DATASETS[recipe].items()} | OPTIONS[recipe]
    out = tmp_path / "notebook"
    shoestring.notebook(recipe, "kaggle-t4x2", out=out, user="me", allow_cpu=True, size="tiny", rows="60", **options)
    metadata = json.loads((out / "kernel-metadata.json").read_text())
    assert metadata["dataset_sources"] == [value.partition(":")[0] for _, value in DATASETS[recipe].values()]
    content = nbformat.read(out / "notebook.ipynb", 4)
    (cell,) = [cell for cell in content.cells if "shoestring.predict(" in cell.source]
    cell.source = cell.source.replace("NEW_DATA = None", f"NEW_DATA = {str(tmp_path / NEW[recipe])!r}")
    nbformat.write(content, out / "notebook.ipynb")
    environment = clean_environment() | {"SHOESTRING_KAGGLE_ROOT": str(tmp_path / "kaggle"), "OMP_NUM_THREADS": "1"}
    content = execute(out / "notebook.ipynb", python, environment | {"HF_HUB_OFFLINE": "1"})  # raises what a cell does
    assert not [output for cell in content.cells for output in cell.get("outputs", ()) if output.output_type == "error"]
    run = tmp_path / "kaggle" / "working" / "runs" / recipe
    assert json.loads((run / "state.json").read_text())["status"] == "finished"
    predictions = [path for path in run.parent.rglob("*predictions*") if path.is_file()]
    assert predictions and all(path.stat().st_size for path in predictions)
