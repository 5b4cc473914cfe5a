"""Wheels that an image lacks, downloaded by the real pip from a folder."""

import zipfile

import pytest

from shoestring.base.packages.requirements import Package
from shoestring.hardware.images import AddedPackage, Image, ImageAnswer, lacks
from shoestring.remote.wheels import cached_wheels, download_wheels


@pytest.fixture
def index(tmp_path, monkeypatch):
    """The folder that pip takes packages from; the cache is another one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, value in {
        "NO_INDEX": "1",
        "FIND_LINKS": str(tmp_path),
        "RETRIES": "0",
        "CONFIG_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    return tmp_path


def write_wheel(folder, name, version, tag="py3-none-any", python=">=3"):
    info = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Python: {python}\n"
        wheel.writestr(f"{info}/METADATA", f"{metadata}Requires-Dist: torch\n")
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def answer_for(*names, python="3.12", **brought):
    image = Image(
        platform="kaggle", title="An image", python=python, date="2026-01-01", sources=(), packages={},
        additions={name: AddedPackage(version=version) for name, version in brought.items()},
    )  # fmt: skip
    return ImageAnswer(image=image, lacks=lacks(image, [Package(name=name) for name in names]))


def test_wheels_are_downloaded_once_and_a_missing_one_is_a_problem(index):
    answer = answer_for("nothing", "gguf", gguf="0.18", nothing="1.0")
    path = write_wheel(index, "gguf", "0.18")
    write_wheel(index, "gguf", "0.19")
    assert cached_wheels(answer) == {}
    problem, *others = download_wheels(answer)
    assert "no wheel of nothing==1.0 for Python 3.12" in problem and not others
    wheels = {path.name: path.read_bytes()}
    assert cached_wheels(answer) == wheels
    path.unlink()
    assert len(download_wheels(answer)) == 1 and cached_wheels(answer) == wheels


@pytest.mark.parametrize("python", ["3.12", "3.13"])
def test_wheels_are_for_the_python_of_the_image(index, python):
    """Whichever Python runs here; also those that pip's newest platform alone does not find."""
    own = f"cp{python.replace('.', '')}"
    tags = {other: f"{other}-{other}-manylinux_2_28_x86_64" for other in ("cp311", "cp312", "cp313")}
    for tag in tags.values():
        write_wheel(index, "compiled", "2.0", tag)
    write_wheel(index, "portable", "0.50.2", "py3-none-manylinux_2_24_x86_64", python=f"=={python}.*")
    write_wheel(index, "stable", "1.0", "cp311-abi3-manylinux2014_x86_64")
    answer = answer_for(
        "compiled", "portable", "stable", python=python, compiled="2.0", portable="0.50.2", stable="1.0"
    )
    assert download_wheels(answer) == []
    assert set(cached_wheels(answer)) == {
        f"compiled-2.0-{tags[own]}.whl",
        "portable-0.50.2-py3-none-manylinux_2_24_x86_64.whl",
        "stable-1.0-cp311-abi3-manylinux2014_x86_64.whl",
    }
