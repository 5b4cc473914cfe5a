"""Libraries that are installed and cannot be imported are one error, wherever the import is."""

import importlib
import os
import subprocess
import sys

import pytest

import shoestring
from shoestring.base.errors import UsageError
from shoestring.base.failures import recipe_errors
from shoestring.base.packages.broken import broken_library, usable_libraries
from tests.libraries import hide, install, use

NOT_A_LIBRARY = "libfoo.so.3: cannot open shared object file"


def error_of(statement: str) -> BaseException:
    try:
        exec(statement, {"__name__": "mine"})
    except Exception as error:  # noqa: BLE001
        return error
    raise AssertionError("it raised nothing")


@pytest.mark.parametrize("kind", ["ImportError", "OSError", "RuntimeError", "AttributeError", "ValueError"])
def test_whatever_an_import_raises_names_the_library(tmp_path, monkeypatch, kind):
    install(tmp_path, "nupunkt", "0.7.3", f"raise {kind}('{NOT_A_LIBRARY}')")
    use(monkeypatch, tmp_path, "nupunkt")
    explained = broken_library(error_of("import nupunkt"))
    assert explained.message == (
        f"nupunkt 0.7.3 is installed, but cannot be imported (required: nupunkt>=0.7): {kind}: {NOT_A_LIBRARY}"
    )
    assert explained.hint.startswith("pip install --force-reinstall --no-deps nupunkt==0.7.3; ")
    assert explained.status == 2


def test_the_innermost_library_is_the_one_that_is_broken(tmp_path, monkeypatch):
    install(tmp_path, "nupunkt", "0.7.3", "import tifffile")
    install(tmp_path, "tifffile", "2026.1", f"raise OSError('{NOT_A_LIBRARY}')")
    use(monkeypatch, tmp_path, "nupunkt", "tifffile")
    assert broken_library(error_of("import nupunkt")).message.startswith("tifffile 2026.1 is installed, but")


def test_an_import_that_is_postponed_is_found_by_its_cause(tmp_path, monkeypatch):
    """transformers imports its models late, and raises another exception from that of the import."""
    install(tmp_path, "nupunkt", "0.7.3", f"raise OSError('{NOT_A_LIBRARY}')")
    use(monkeypatch, tmp_path, "nupunkt")
    late = "try:\n    import nupunkt\nexcept OSError as error:\n    raise RuntimeError('failed to import') from error"
    assert broken_library(error_of(late)).message.startswith("nupunkt 0.7.3 is installed, but")


def test_a_requirement_that_a_library_lacks_is_installed_with_it(tmp_path, monkeypatch):
    install(tmp_path, "nupunkt", "0.7.3", "import a_module_that_does_not_exist")
    use(monkeypatch, tmp_path, "nupunkt")
    explained = broken_library(error_of("import nupunkt"))
    assert "No module named 'a_module_that_does_not_exist'" in explained.message
    assert explained.hint.startswith("pip install nupunkt==0.7.3; ")


def test_a_library_that_is_missing_where_it_is_imported(monkeypatch):
    hide(monkeypatch, "nupunkt")
    monkeypatch.setitem(sys.modules, "nupunkt", None)
    assert broken_library(error_of("import nupunkt")).message == "nupunkt is not installed (required: nupunkt>=0.7)"


def test_a_module_that_a_notebook_does_not_carry(monkeypatch):
    error = error_of("import shoestring.planning.absent")
    assert broken_library(error) is None, "in a complete copy this is a defect of the code that imports it"
    monkeypatch.setattr("shoestring.base.packages.broken.find_spec", lambda name: None)
    assert broken_library(error).message.endswith("needs: No module named 'shoestring.planning.absent'")
    assert broken_library(error_of("from nupunkt import absent")) is None


@pytest.mark.parametrize(
    "statement", ["import a_module_of_mine", "1 / 0", "import torch; torch.zeros(2) @ torch.zeros(3)"]
)
def test_other_errors_are_not_those_of_libraries(statement):
    assert broken_library(error_of(statement)) is None


def test_errors_of_recipes_and_of_the_verbs_are_explained(tmp_path, monkeypatch):
    install(tmp_path, "nupunkt", "0.7.3", f"raise OSError('{NOT_A_LIBRARY}')")
    use(monkeypatch, tmp_path, "nupunkt")
    for context in (recipe_errors("mine.py could not be run"), usable_libraries()):
        with pytest.raises(UsageError, match=r"^nupunkt 0.7.3 is installed, but cannot be imported"), context:
            importlib.import_module("nupunkt")


RECIPE = """
import nupunkt


class Mine:
    def model(self): ...
    def batch(self, size): ...
    def loss(self, model, batch): ...
"""


def run(folder, *arguments):
    """Run the command line with the libraries of a folder, which a process imports anew."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "shoestring", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)


@pytest.mark.parametrize("verb", ["plan", "estimate", "check", "train"])
def test_a_recipe_file_that_imports_a_broken_library(tmp_path, verb):
    install(tmp_path, "nupunkt", "0.7.3", f"raise OSError('{NOT_A_LIBRARY}')")
    recipe = tmp_path / "recipes" / "mine.py"  # a file beside it would be imported as a part of the recipe
    recipe.parent.mkdir()
    recipe.write_text(RECIPE)
    process = run(tmp_path, verb, recipe, *(["--run", tmp_path / "run"] if verb == "train" else []))
    assert process.returncode == 2
    message, hint, *_ = process.stderr.splitlines()
    assert message.startswith("error: nupunkt 0.7.3 is installed, but cannot be imported")
    assert hint.startswith("hint: pip install --force-reinstall --no-deps nupunkt==0.7.3")
    assert not (tmp_path / "run" / "plan.json").exists()


@pytest.mark.parametrize("verb", ["plan", "estimate", "train"])
@pytest.mark.parametrize("version", ["2.5.1", "3.0.0"])
def test_an_unsuitable_torch_is_refused_before_it_is_imported(tmp_path, verb, version):
    install(tmp_path, "torch", version)
    process = run(tmp_path, verb, "temporal", *(["--run", tmp_path / "run"] if verb == "train" else []))
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr.startswith(f"error: torch {version} is too ")
    assert "hint: pip install 'torch>=2.10,<3'" in process.stderr
    assert not (tmp_path / "run" / "plan.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["plan", "train"])
def test_a_broken_torch_is_named_by_the_process_that_traces(tmp_path, verb):
    install(tmp_path, "torch", "2.13.0", f"raise OSError('{NOT_A_LIBRARY}')")
    process = run(tmp_path, verb, "temporal", *(["--run", tmp_path / "run"] if verb == "train" else []))
    assert process.returncode == 2
    assert process.stderr.startswith("error: torch 2.13.0 is installed, but cannot be imported")


def test_the_functions_of_python_raise_the_same_error(monkeypatch):
    hide(monkeypatch, "torch")
    for call in (lambda: shoestring.plan("temporal"), lambda: shoestring.train("temporal", run="nowhere")):
        with pytest.raises(UsageError, match=r"^torch is not installed"):
            call()
