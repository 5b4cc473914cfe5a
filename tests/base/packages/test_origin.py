"""The command that installs an extra, by where this copy of Shoestring came from."""

import importlib.metadata
import json
import re
import sys
from pathlib import Path

import pytest

from shoestring.base.packages import origin
from shoestring.base.packages.origin import install_command, pip_install
from shoestring.base.packages.requirements import require
from tests.libraries import hide

ROOT = Path(__file__).parents[3]
PACKAGES = ["nupunkt>=0.7", "transformers>=4.56,<6"]
BY_NAME = "pip install 'nupunkt>=0.7' 'transformers>=4.56,<6'"


@pytest.fixture
def record(monkeypatch):
    """A function that sets what pip has recorded about the origin."""
    return lambda content: monkeypatch.setattr(origin, "_recorded_origin", lambda: content)


def test_the_checkout_of_an_editable_installation(tmp_path, record):
    record({"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    assert install_command("legal", PACKAGES) == f"pip install --editable '{tmp_path}[legal]'"
    assert install_command("", PACKAGES) == f"pip install --editable {tmp_path}"


def test_the_folder_and_the_wheel(tmp_path, record):
    folder = tmp_path / "a checkout"
    folder.mkdir()
    record({"url": folder.as_uri(), "dir_info": {}})
    assert install_command("legal", PACKAGES) == f"pip install '{folder}[legal]'"
    wheel = tmp_path / "shoestring-0.2.0-py3-none-any.whl"
    wheel.touch()
    record({"url": wheel.as_uri(), "archive_info": {}})
    assert install_command("legal", PACKAGES) == f"pip install '{wheel}[legal]'"
    wheel.unlink()
    assert install_command("legal", PACKAGES) == BY_NAME


def test_the_commit_of_a_repository(record):
    record({"url": "https://host/shoestring", "vcs_info": {"vcs": "git", "commit_id": "1234"}})
    assert install_command("legal", PACKAGES) == "pip install 'shoestring[legal] @ git+https://host/shoestring@1234'"


def test_an_unknown_origin_names_the_packages(record):
    record({})
    assert install_command("legal", PACKAGES) == BY_NAME
    record({"url": "https://host/shoestring.whl", "archive_info": {}})
    assert install_command("legal", PACKAGES) == BY_NAME


def test_hints_of_missing_libraries_use_it(monkeypatch, record):
    record({})
    hide(monkeypatch, "nupunkt")
    with pytest.raises(Exception, match="nupunkt is not installed") as refused:
        require("legal", "nupunkt")
    assert refused.value.hint == "pip install 'nupunkt>=0.7', then start again"


def test_what_pip_records_is_read():
    """This project is installed as editable where its tests run."""
    record = origin._recorded_origin()
    assert record["url"].startswith("file://")
    assert json.dumps(record)


def test_environments_of_pipx_and_uv_have_installers_of_their_own(tmp_path, monkeypatch):
    def find_nothing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    with monkeypatch.context() as patch:
        patch.setattr(importlib.metadata, "distribution", find_nothing)
        assert pip_install("a>=1") == f"uv pip install --python {sys.executable} 'a>=1'"
    (tmp_path / "pipx_metadata.json").touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert pip_install("a>=1") == "pipx runpip shoestring install 'a>=1'"


def test_arguments_are_quoted_for_a_shell():
    assert pip_install("a", "b c", "it's") == """pip install a 'b c' 'it'"'"'s'"""


def test_nothing_installs_a_project_of_our_name_from_the_index():
    """Nobody has published it yet, so whoever does would be installed."""
    folders = [folder for name in ("src", "docs", "examples") for folder in (ROOT / name).rglob("*")]
    files = [ROOT / "README.md", *(path for path in folders if path.suffix in (".py", ".md", ".toml"))]
    by_name = re.compile(r"(pip|pipx|uv tool|uv pip) install [^`\n]*?(?<![\w/.@=-])'?shoestring(\[|'|`|\s|$)")
    assert by_name.search("pip install --upgrade 'shoestring[legal]'")
    assert [path for path in files if by_name.search(path.read_text())] == []
