"""The files beside a recipe that its code imports."""

import importlib.util
import pickle
import sys

import pytest
import torch

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.hardware import targets
from shoestring.planning import phases
from shoestring.planning.counts import Counts
from shoestring.recipe.finding import find
from shoestring.training.data.workers import _RequestDataset
from shoestring.training.engine.environment import environment, require_same

RECIPE = """
class Mine:
    def model(self): ...
    def batch(self, size): return helper.VALUE
    def loss(self, model, batch): ...
"""


def write(folder, **files):
    """Write Python files; two underscores stand for a folder."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "mine.py"


def verified(path, *names):
    return {name: (path.parent / name).read_bytes() for name in (path.name, *names)}


def test_two_recipes_with_a_module_of_one_name_each_have_their_own(tmp_path):
    first = find(str(write(tmp_path / "a", mine=f"import helper{RECIPE}", helper="VALUE = 1")))
    second = find(str(write(tmp_path / "b", mine=f"import helper{RECIPE}", helper="VALUE = 2")))
    assert (first.recipe.batch(1), second.recipe.batch(1)) == (1, 2)
    assert "helper" not in sys.modules and importlib.util.find_spec("helper") is None


def test_forms_of_import(tmp_path):
    path = write(
        tmp_path,
        mine=(
            "import helper\nimport parts.shapes as shapes, parts.inner.deep\nfrom parts import sizes\n"
            "from flat.names import NAME\nimport statistics\nfrom helper import VALUE\n"
            "assert (VALUE, shapes.SIZE, sizes.SIZE, parts.inner.deep.DEPTH, NAME) == (1, 3, 3, 4, 'n')\n"
            f"assert statistics.mean([1, 3]) == 2{RECIPE}"
            "    def data(self):\n        import late\n        return late.VALUE\n"
        ),
        helper="import parts\nVALUE = 1",
        late="VALUE = 9",
        statistics="raise RuntimeError('this is not the standard library')",
        unused="raise RuntimeError('this is not imported')",
        parts__shapes="from .sizes import SIZE",
        parts__sizes="from . import inner\nSIZE = 3",
        parts__inner__deep="from .. import sizes\nDEPTH = 4",
        flat__names="NAME = 'n'",
    )
    for package in ("parts", "parts/inner"):
        (tmp_path / package / "__init__.py").write_text("")
    loaded = find(str(path))
    assert loaded.recipe.batch(1) == 1 and loaded.recipe.data() == 9
    assert loaded.imports.keys() == {
        *("helper.py", "late.py", "flat/names.py", "parts/__init__.py", "parts/shapes.py", "parts/sizes.py"),
        *("parts/inner/__init__.py", "parts/inner/deep.py"),
    }
    assert not list(tmp_path.rglob("__pycache__"))


def test_missing_module_is_named_as_it_is_imported(tmp_path):
    path = write(tmp_path, mine=f"import helper.missing{RECIPE}", helper="VALUE = 1")
    with pytest.raises(UsageError, match=r"No module named 'helper\.missing'"):
        find(str(path))


def test_changed_module_is_executed_when_the_recipe_is_loaded_again(tmp_path):
    path = write(tmp_path, mine=f"import helper{RECIPE}", helper="VALUE = 1")
    before = find(str(path)).imports
    write(tmp_path, helper="VALUE = 2")
    after = find(str(path))
    assert after.recipe.batch(1) == 2 and after.imports != before


@pytest.mark.parametrize("statement", ["import other", "importlib.import_module('other')", "from plain import other"])
def test_verified_files_alone_are_executed(tmp_path, monkeypatch, statement):
    """Also if the folder is in Python's path, and if the files have changed since."""
    path = write(
        tmp_path,
        mine=f"import helper, importlib{RECIPE}    def data(self):\n        {statement}\n",
        helper="VALUE = 1",
        other="raise RuntimeError('executed')",
        plain__other="raise RuntimeError('executed')",
    )
    contents = verified(path, "helper.py")
    monkeypatch.syspath_prepend(tmp_path)
    write(tmp_path, mine="raise RuntimeError('executed')", helper="raise RuntimeError('executed')")
    loaded = find(str(path), verified=contents)
    assert loaded.recipe.batch(1) == 1
    with pytest.raises(ImportError, match="other"):
        loaded.recipe.data()
    assert importlib.util.find_spec("other").loader.get_filename() == str(tmp_path / "other.py")  # for other code


def test_module_beside_the_recipe_is_imported_in_a_new_process(tmp_path):
    """As a data worker that is spawned: its dataset, which is pickled, is of a class beside the recipe."""
    path = write(
        tmp_path,
        mine=f"import helper{RECIPE}    def data(self): return helper.Samples()\n",
        helper="VALUE = 1\nclass Samples:\n    def __getitem__(self, index): return VALUE",
    )
    loaded = find(str(path))
    payload = pickle.dumps(_RequestDataset(loaded.recipe.data(), list, 0))
    write(tmp_path, helper="raise RuntimeError('the worker executes the bytes that this process has executed')")
    package = loaded.source.package
    for name in [name for name in sys.modules if name.startswith(package)]:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "package", "") != package]
    assert pickle.loads(payload)[0, [0]].content == [1]  # noqa: S301 - written above


def test_module_that_is_not_imported_by_a_statement_is_named(tmp_path):
    path = write(tmp_path, mine=f"import importlib\nhelper = importlib.import_module('helper'){RECIPE}", helper="")
    with pytest.raises(UsageError, match="'helper': a module beside the recipe is imported by an import statement"):
        find(str(path))


def test_plan_does_not_execute_the_recipe_again(tmp_path):
    """Its classes would be others than those of the datasets and batches that data workers pickle."""
    loaded = find(str(write(tmp_path, mine=f"import helper{RECIPE}", helper="VALUE = 1")))
    counts = Counts(samples={"train": 90}, per_epoch=3, total=3, epochs=1)
    phases.phases(loaded, Settings(), targets.find("cpu"), counts=counts, work=None)
    assert sys.modules[loaded.source.package].Mine is type(loaded.recipe)


def test_run_does_not_continue_unnoticed_with_an_edited_module(tmp_path):
    path = write(tmp_path, mine=f"import helper{RECIPE}", helper="VALUE = 1")
    settings, device = Settings(micro_batch=1, precision="fp32"), torch.device("cpu")
    before = environment(settings, device, find(str(path)))
    write(tmp_path, helper="VALUE = 2")
    with pytest.raises(UsageError, match=r"files that the recipe imports: changed since the checkpoint: helper\.py"):
        require_same(before, environment(settings, device, find(str(path))), allow_inexact=False)


def test_recipe_that_parses_the_command_line_gets_its_defaults(tmp_path, monkeypatch):
    parsing = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr', default=3, {})\n"
    parsing += "helper = argparse.Namespace(VALUE=parser.parse_args().lr)\n"
    monkeypatch.setattr(sys, "argv", ["shoestring", "plan", "mine.py", "--on", "t4"])
    assert find(str(write(tmp_path, mine=parsing.format("") + RECIPE))).recipe.batch(1) == 3
    assert sys.argv[1:3] == ["plan", "mine.py"]
    with pytest.raises(UsageError, match=r"ended Python with status 2 at .*mine\.py:4") as error:
        find(str(write(tmp_path, mine=parsing.format("required=True") + RECIPE)))
    assert 'below if __name__ == "__main__":' in error.value.hint
