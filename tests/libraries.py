"""Libraries that tests pretend are missing, or installed in another version."""

import sys
from pathlib import Path

import pytest

from shoestring.base.packages import requirements


def hide(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """Make libraries look as if they were not installed: neither their metadata nor their modules are there."""
    names = {requirements.name_of(module) for module in modules}
    version, has_module = requirements.installed_version, requirements.has_module
    monkeypatch.setattr(requirements, "installed_version", lambda name: "" if name in names else version(name))
    monkeypatch.setattr(requirements, "has_module", lambda module: module not in modules and has_module(module))


def install(folder: Path, name: str, version: str, code: str | None = None) -> None:
    """Put the metadata of a version, and the `code` of its module, into a folder for PYTHONPATH."""
    metadata = folder / f"{name}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if code is not None:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(code)


def use(monkeypatch: pytest.MonkeyPatch, folder: Path, *modules: str) -> None:
    """Let this process find the libraries of a folder before others, and import the `modules` anew."""
    for module in [loaded for loaded in sys.modules if loaded.partition(".")[0] in modules]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.syspath_prepend(folder)
