import subprocess
import sys
from pathlib import Path

import shoestring
from shoestring.remote.wheel import build_wheel, wheel_name


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
    source = Path(shoestring.__file__).parents[1]
    for path in source.glob("shoestring*/**/*.py"):
        assert (site / path.relative_to(source)).read_bytes() == path.read_bytes()
    assert (site / "shoestring_recipes" / "legal").is_dir()
    assert (site / "bin" / "shoestring").exists()


def test_same_files_make_the_same_bytes():
    assert build_wheel() == build_wheel()
