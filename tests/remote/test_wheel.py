import ast
import io
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import shoestring
from shoestring.recipe.finding import find
from shoestring.remote.wheel import build_wheel, recipes_used, wheel_name

SOURCE = Path(shoestring.__file__).parents[1]


def test_wheel_is_installed_by_pip_and_is_the_same_copy(tmp_path):
    wheel = tmp_path / wheel_name()
    wheel.write_bytes(build_wheel())
    site = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", site, wheel]
    subprocess.run(command, check=True, capture_output=True)
    script = (
        "import shoestring; from importlib.metadata import version; print(shoestring.__file__, version('shoestring'))"
    )
    process = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": str(site)}, capture_output=True, text=True, check=True
    )
    file, version = process.stdout.split()
    assert Path(file) == site / "shoestring" / "__init__.py"
    assert version == shoestring.__version__
    for path in SOURCE.glob("shoestring*/**/*.py"):
        assert (site / path.relative_to(SOURCE)).read_bytes() == path.read_bytes()
    assert (site / "shoestring_recipes" / "legal").is_dir()
    assert (site / "bin" / "shoestring").exists()


def test_same_files_make_the_same_bytes():
    assert build_wheel() == build_wheel()


def test_wheel_with_one_recipe_has_no_other_and_no_entry_point_of_one():
    with zipfile.ZipFile(io.BytesIO(build_wheel(["legal"]))) as archive:
        names = archive.namelist()
        entry_points = archive.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    packages = {name.split("/")[1] for name in names if name.startswith("shoestring_recipes/") and name.count("/") > 1}
    assert packages == {"legal"} and "shoestring_recipes/rows.py" in names
    assert re.findall(r"shoestring_recipes\.(\w+)", entry_points) == ["legal"]


def test_what_a_session_imports_is_carried():
    """Of modules that are left out, only the verbs of `api` that a session does not call import any, and a command that
    prints the answer of such a verb."""
    with zipfile.ZipFile(io.BytesIO(build_wheel(["finetune"]))) as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist() if name.endswith(".py")}
    left_out = {path.relative_to(SOURCE).as_posix() for path in SOURCE.glob("shoestring/**/*.py")} - set(texts)
    modules = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in left_out}
    importing = set()
    for name, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                importing |= {name} if imported & modules else set()
    verbs = {f"shoestring/api/{name}.py" for name in ("kaggle", "notebooks", "rehearsing", "runs")}
    answers = {f"shoestring/answers/{name}.py" for name in ("measurement", "notebook_files")}
    assert importing == {*verbs, *answers, "shoestring/cli/commands/rehearsing.py"}


def test_verbs_of_which_a_notebook_carries_nothing_say_so(tmp_path):
    with zipfile.ZipFile(io.BytesIO(build_wheel(["temporal"]))) as archive:
        archive.extractall(tmp_path)
    script = """
import sys
from shoestring import api, errors
from shoestring.cli.commands import main

verbs = api.prepare_rehearsal, lambda: api.rehearse("a.py"), lambda: api.notebook("legal", out="n"), api.measured
for verb in verbs:
    try:
        verb()
    except errors.UsageError as error:
        print(error.message, file=sys.stderr)
sys.argv = ["shoestring", "kaggle", "status", "--run", "."]
main()
"""
    process = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path, capture_output=True, text=True
    )
    assert process.returncode == 2, process.stderr
    assert process.stderr.count("this copy of Shoestring is incomplete, because a notebook carries only ") == 5


def test_recipes_that_a_file_imports_are_carried(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from shoestring_recipes import cloud, rows\n"
        "from shoestring_recipes.legal import Legal\n\nclass Mine(Legal): ...\n"
    )
    assert recipes_used(find(str(tmp_path / "mine.py"))) == {"legal", "cloud"}
    assert recipes_used(find("temporal")) == {"temporal"}
