"""A session on an image with its own Python and packages: what is lacking arrives as wheels, without internet.

`benchmarks/kaggle/image.py` does it with the real packages, which are large; here they are empty ones with the same
names, versions and tags.
"""

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from shoestring.base.packages.requirements import required
from shoestring.hardware.images import IMAGES, lacks
from tests.remote.kaggle.kernel.layout import list_package, make_config, run_session

IMAGE = IMAGES["kaggle"]
OWN = f"cp{IMAGE.python.replace('.', '')}"
TAGS = {
    "bitsandbytes": "py3-none-manylinux_2_24_x86_64",
    "pyarrow": f"{OWN}-{OWN}-manylinux_2_28_x86_64",
}
NEEDS = {"trl": ("datasets>=4.7.0", "pyarrow>=21.0.0"), "datasets": ("pyarrow>=21.0.0", "dill<0.4.2,>=0.3.0")}
TRAINER = """
import importlib.metadata, json, pathlib, shoestring, sys
assert "site-packages" in shoestring.__file__, "dill takes it for the user's own module"
run = pathlib.Path(sys.argv[sys.argv.index("--run") + 1])
run.mkdir()
versions = {name: importlib.metadata.version(name) for name in NAMES}
reason = json.dumps([sys.version_info[:2], versions])
(run / "state.json").write_text(json.dumps({"status": "finished", "reason": reason}))
"""


@pytest.fixture(scope="module")
def python():
    """A Python of the image's version, which has pip and none of what is lacking."""
    candidates = [sys.executable, shutil.which(f"python{IMAGE.python}")]
    candidates += sorted((Path.home() / ".pyenv" / "versions").glob(f"{IMAGE.python}.*/bin/python"))
    check = (
        "import pip, sys; from importlib.util import find_spec; "
        f"sys.exit('%d.%d' % sys.version_info[:2] != {IMAGE.python!r} or find_spec('trl') is not None)"
    )
    for candidate in filter(None, candidates):
        if not subprocess.run([candidate, "-c", check], capture_output=True).returncode:
            return str(candidate)
    return pytest.skip(f"there is no Python {IMAGE.python}")


def write_wheel(folder, name, version, requirements=(), tag="py3-none-any", **files):
    info = f"{name}-{version}.dist-info"
    lines = "".join(f"Requires-Dist: {requirement}\n" for requirement in requirements)
    with zipfile.ZipFile(folder / f"{name}-{version}-{tag}.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{lines}")
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        wheel.writestr(f"{info}/RECORD", "")
        for path, content in files.items():
            wheel.writestr(f"{name}/{path}.py", content)


@pytest.fixture
def make_session(tmp_path):
    """Make an image of these packages, and a dataset with the wheels of what the table's image lacks for extras."""

    def make(extras, installed):
        root, image = tmp_path / "kaggle", tmp_path / "image"
        package = root / "input" / "package"
        package.mkdir(parents=True)
        for name, version in installed.items():
            info = image / f"{name.replace('-', '_')}-{version}.dist-info"
            info.mkdir(parents=True)
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        packages = required(extras)
        lines = [f"{item.name}>={item.minimum or 0}; extra == '{item.extra or extras[0]}'" for item in packages]
        brought = lacks(IMAGE, packages)
        trainer = f"NAMES = {[item.name for item in (*packages, *brought)]!r}\n{TRAINER}"
        write_wheel(package, "shoestring", "1.0", lines, __init__="", __main__=trainer)
        for item in brought:
            write_wheel(package, item.name, item.version, NEEDS.get(item.name, ()), TAGS.get(item.name, "py3-none-any"))
        list_package(package)
        return root, make_config(1, extras=extras, python=IMAGE.python), {"PYTHONPATH": str(image)}

    return make


def known_versions():
    return {name: version or "99.0" for name, version in IMAGE.packages.items()}


@pytest.mark.parametrize(
    ("extras", "expected"),
    [
        (["bitsandbytes", "finetune", "huggingface"], {"bitsandbytes": "0.50.2", "gguf": "0.19.0"}),
        pytest.param(["chart"], {"datasets": "5.0.1", "pyarrow": "26.0.1", "trl": "1.16.0"}, marks=pytest.mark.slow),
    ],
)
def test_what_the_image_lacks_arrives_without_internet(python, make_session, extras, expected):
    root, config, environment = make_session(extras, known_versions())
    left = run_session(root, config, python, **environment)
    assert left.status == "finished", left
    assert left.facts["brought"] == expected and left.facts["python"].startswith(f"{IMAGE.python}.")
    version, found = json.loads(left.reason)
    assert version == [int(number) for number in IMAGE.python.split(".")]
    assert {name: found[name] for name in expected} == expected
    assert {name: found[name] for name in ("torch", "transformers")} == {"torch": "2.10.0", "transformers": "5.0.0"}


@pytest.mark.slow
def test_image_that_is_newer_than_its_table_keeps_its_packages(python, make_session):
    root, config, environment = make_session(["chart"], known_versions() | {"datasets": "4.8.0", "pyarrow": "22.0.0"})
    left = run_session(root, config, python, **environment)
    assert (left.status, left.facts["brought"]) == ("finished", {"trl": "1.16.0"})


def test_image_that_has_lost_a_package_is_named(python, make_session):
    installed = known_versions()
    del installed["accelerate"], installed["peft"]
    root, config, environment = make_session(["chart"], installed)
    left = run_session(root, config, python, **environment)
    assert left.status == "failed" and f"Kaggle's image (Python {IMAGE.python})" in left.reason
    assert left.reason.endswith("has peft>=0.15") and left.hint == "allow the internet for the session"
