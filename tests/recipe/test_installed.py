"""Recipes of installed packages are found by name, whatever other packages declare."""

import importlib
import io
import sys
import warnings
import zipfile

import pytest

from shoestring import api
from shoestring.base.errors import UsageError
from shoestring.cli import completion
from shoestring.recipe import installed
from shoestring.recipe.finding import find
from shoestring.remote.wheel import rebuild_wheel
from tests.recipe.packages import install, uninstall


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder for packages in which Python looks first. What is imported from it is forgotten afterwards."""
    modules = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", "") and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def listed():
    return {(recipe["name"], recipe["origin"]): recipe["problem"] for recipe in api.recipes()}


def test_recipes_of_packages_are_listed_with_their_origin(site):
    install(site, "line-fitting", "1.2", recipes="line = line_fitting:LineFitting\nmine.py = line_fitting:LineFitting")
    install(site, "absent-import", module="import absent_library", recipes="absent = absent_import:Recipe")
    install(site, "no-recipe", module="class Empty: ...", recipes="empty = no_recipe:Empty")
    assert "line_fitting" not in sys.modules
    assert ("line", "line-fitting 1.2") in completion.recipe("l") and ("legal", "built-in") in completion.recipe("l")
    assert not {"line_fitting", "absent_import"} & set(sys.modules)
    problems = listed()
    assert problems["legal", "built-in"] is None and problems["line", "line-fitting 1.2"] is None
    assert "No module named 'absent_library'" in problems["absent", "absent-import 1.0"]
    assert "no_recipe:Empty lacks model, batch, loss" in problems["empty", "no-recipe 1.0"]
    assert "mine.py" not in {name for name, _ in problems}
    (described,) = api.recipes("line")
    assert described["summary"] == "A linear function of random samples."
    for name, distribution in (("absent", "absent-import 1.0"), ("empty", "no-recipe 1.0")):
        with pytest.raises(UsageError, match=f"the recipe {name} of {distribution} "):
            find(name)


def test_an_error_names_the_packages_that_share_a_name_only_where_it_is_used(site):
    for distribution in ("line-fitting", "other-lines"):
        recipes = f"line = {distribution.replace('-', '_')}:LineFitting"
        infos = [install(site, distribution, recipes=f"{recipes}\nlegal{recipes.removeprefix('line')}")]
    with pytest.raises(UsageError, match=r"a recipe named line: (line-fitting|other-lines) 1\.0 and ") as error:
        find("line")
    assert error.value.hint.startswith("uninstall one of them: pip uninstall ")
    with pytest.raises(UsageError, match=r"a recipe named legal: shoestring \S+ and ") as error:
        find("legal")
    assert error.value.hint.startswith("uninstall one of them: pip uninstall ") and "shoestring" not in error.value.hint
    assert find("vqa").is_built_in
    problems = listed()
    assert all("other-lines 1.0" in problems[key] for key in problems if key[0] in ("line", "legal"))
    uninstall(*infos)
    assert find("line").package.requirement == "line-fitting==1.0"


def test_built_in_recipes_are_entry_points_of_shoestring():
    assert sorted(installed.built_in_names()) == ["chart", "cloud", "finetune", "legal", "temporal", "vqa"]
    assert installed.recipe_for_data("hf") == "finetune"


def test_wheel_of_an_installed_package_is_installed_again(site):
    install(site, "line-fitting", "1.2", recipes="line = line_fitting:LineFitting")
    name, content = rebuild_wheel(find("line").package)
    assert name == "line_fitting-1.2-py3-none-any.whl"
    names = zipfile.ZipFile(io.BytesIO(content)).namelist()
    metadata = {f"line_fitting-1.2.dist-info/{file}" for file in ("METADATA", "entry_points.txt", "RECORD", "WHEEL")}
    assert set(names) == {"line_fitting.py", *metadata}


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (["line_fitting.py", "fast.so"], "fast.so is compiled"),
        (["line_fitting.pth"], "has none in Python, as after pip install --editable"),
    ],
)
def test_package_that_cannot_be_sent_is_refused(site, files, problem):
    info = install(site, "line-fitting", "1.2", recipes="line = line_fitting:LineFitting")
    for file in files:
        (site / file).touch()
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    with pytest.raises(UsageError, match=f"line-fitting 1.2 cannot be sent to Kaggle: .*{problem}"):
        rebuild_wheel(installed.find("line").package)


def test_old_import_paths_are_the_same_modules():

    for old, new in (
        ("shoestring.recipes.legal.crf", "shoestring_recipes.legal.crf"),
        ("shoestring.recipes.lightning", "shoestring.integrations.lightning"),
        ("shoestring.recipes.rows", "shoestring_recipes.rows"),
    ):
        for module in [name for name in sys.modules if name.startswith("shoestring.recipes.")]:
            del sys.modules[module]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "shoestring.recipes.legal has moved")
            with pytest.warns(DeprecationWarning, match=f"{old} has moved: import {new}"):
                module = importlib.import_module(old)
        assert module is importlib.import_module(new) and module.__spec__.name == new
    with pytest.raises(ModuleNotFoundError), pytest.warns(DeprecationWarning, match="absent"):
        importlib.import_module("shoestring.recipes.absent")
