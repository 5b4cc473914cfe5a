"""Wheels that Kaggle's image lacks, downloaded by the real pip from a folder."""

import zipfile

import pytest

from shoestring.remote.kaggle import wheels


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
    monkeypatch.setattr(wheels, "PYTHONS", ("3.12",))
    return tmp_path


def test_requirements_of_an_extra():
    assert wheels.lacked_requirements("legal") == ["matplotlib>=3.9", "nupunkt>=0.7", "nvidia-ml-py>=12.535"]
    assert "scikit-learn>=1.5" in wheels.lacked_requirements("vqa")


def test_wheels_are_downloaded_once_and_a_missing_one_is_a_note(index, monkeypatch):
    monkeypatch.setattr(wheels, "lacked_requirements", lambda extra: ["nothing>=1", "gguf>=0.17"])
    with zipfile.ZipFile(index / "gguf-0.18-py3-none-any.whl", "w") as wheel:
        wheel.writestr("gguf-0.18.dist-info/METADATA", "Metadata-Version: 2.1\nName: gguf\nVersion: 0.18\n")
        wheel.writestr("gguf-0.18.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("gguf-0.18.dist-info/RECORD", "")
    assert wheels.cached_wheels("finetune") == {}
    notes = []
    wheels.download_wheels("finetune", notes.append)
    assert len(notes) == 1 and "no wheel of nothing>=1 for Python 3.12" in notes[0]
    content = (index / "gguf-0.18-py3-none-any.whl").read_bytes()
    assert wheels.cached_wheels("finetune") == {"gguf-0.18-py3-none-any.whl": content}
    (index / "gguf-0.18-py3-none-any.whl").unlink()
    wheels.download_wheels("finetune", notes.append)
    assert len(notes) == 2
