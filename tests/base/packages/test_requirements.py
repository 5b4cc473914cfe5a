"""What is required, from the project's metadata, and what is installed."""

import re
import time
import tomllib
from contextlib import nullcontext
from pathlib import Path

import pytest

from shoestring.base.errors import UsageError
from shoestring.base.packages import requirements
from shoestring.base.packages.requirements import (
    Package,
    declared,
    library_of,
    parse_version,
    remedy,
    require,
    required,
)
from shoestring.base.packages.tested import TESTED
from tests.libraries import hide, install, use

ROOT = Path(__file__).parents[3]
STACKS = ("oldest", "kaggle", "colab", "current")


def pins(stack: str) -> dict[str, str]:
    lines = (ROOT / "constraints" / f"{stack}.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))


def test_tested_versions_are_those_of_the_stacks():
    assert {path.stem for path in (ROOT / "constraints").glob("*.txt")} == set(STACKS)
    by_stack = [pins(stack) for stack in STACKS]
    for name, versions in TESTED.items():
        assert versions == tuple(sorted({of_stack[name] for of_stack in by_stack}, key=parse_version)), name


def test_an_upper_limit_is_the_first_major_version_that_no_stack_has():
    by_stack = [pins(stack) for stack in STACKS]
    limited = {package.name: package.below for package in declared() if package.below}
    assert limited.keys() >= {"torch", "numpy", "transformers", "peft", "trl"}
    for name, below in limited.items():
        newest = max(parse_version(of_stack[name])[0] for of_stack in by_stack if name in of_stack)
        assert below == str(newest + 1), name


def test_extras_agree_on_the_versions_of_a_library():
    requirements_by_name: dict[str, set[str]] = {}
    for package in declared():
        requirements_by_name.setdefault(package.name, set()).add(package.requirement)
    assert {name: versions for name, versions in requirements_by_name.items() if len(versions) > 1} == {}


def test_the_installed_metadata_are_those_of_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = {"": project["dependencies"], **project["optional-dependencies"]}
    wanted = {(extra, line) for extra, of_extra in lines.items() for line in of_extra}
    assert {(package.extra, package.requirement) for package in declared()} == {
        (extra, line.replace("_", "-")) for extra, line in wanted if extra not in ("all", "dev", "docs")
    }


def test_all_libraries_that_tests_use_are_found_by_their_modules():
    extras = {package.extra for package in declared()}
    for package in required(extras):
        assert package.problem == "", package


def test_required_packages_come_from_metadata(monkeypatch):
    of_several = [package.name for package in required({"legal", "chart", "huggingface"})]
    assert len(of_several) == len(set(of_several)) and "transformers" in of_several
    base = {package.name: package for package in required()}
    assert {"torch", "safetensors", "nvidia-ml-py"} <= base.keys() and "peft" not in base
    assert (base["torch"].minimum, base["torch"].below) == ("2.10", "3")
    assert parse_version(base["torch"].installed) >= (2, 10)
    hide(monkeypatch, "peft")
    chart = {package.name: package for package in required({"chart"})}
    assert (chart["peft"].extra, chart["peft"].installed) == ("chart", "")
    assert not {"pytest", "bitsandbytes"} & chart.keys()


@pytest.mark.parametrize(("text", "expected"), [("2.13.0+cu130", (2, 13, 0)), ("3.0rc1", (3, 0, 1)), ("", ())])
def test_parse_version(text, expected):
    assert parse_version(text) == expected


@pytest.mark.parametrize(
    ("version", "problem"),
    [("4.40.0", "4.40.0 is too old"), ("6.0.0", "6.0.0 is too new: version 6 and later are unknown to Shoestring")],
)
def test_an_unsuitable_version_is_one_error_with_the_command(tmp_path, monkeypatch, version, problem):
    install(tmp_path, "transformers", version)
    use(monkeypatch, tmp_path)
    with pytest.raises(UsageError) as refused:
        require("legal", "transformers")
    assert refused.value.lines() == [
        f"transformers {problem} (required: transformers>=4.56,<6)",
        "hint: pip install 'transformers>=4.56,<6', then start again",
    ]


@pytest.mark.parametrize(
    ("version", "is_supported"), [("4.55.4", False), ("4.56.0", True), ("5.99", True), ("6.0", False)]
)
def test_limits_of_a_library(version, is_supported, tmp_path, monkeypatch):
    install(tmp_path, "transformers", version)
    use(monkeypatch, tmp_path)
    with nullcontext() if is_supported else pytest.raises(UsageError, match=rf"^transformers {version} is too "):
        require("chart", "transformers")


def test_several_problems_are_one_error(tmp_path, monkeypatch):
    install(tmp_path, "transformers", "4.40.0")
    use(monkeypatch, tmp_path)
    hide(monkeypatch, "peft")
    with pytest.raises(UsageError, match=r"^2 libraries cannot be used") as refused:
        require("chart", "transformers", "peft", "trl")
    assert [problem.split(" (")[0] for problem in refused.value.problems] == [
        "transformers 4.40.0 is too old",
        "peft is not installed",
    ]
    assert refused.value.hint == "pip install 'transformers>=4.56,<6' 'peft>=0.15,<1', then start again"


def test_metadata_without_a_module_are_an_installation_in_part(monkeypatch):
    monkeypatch.setattr(requirements, "has_module", lambda module: module != "transformers")
    with pytest.raises(UsageError, match="is installed only in part: its module transformers is not there") as refused:
        require("legal", "transformers")
    assert re.match(r"pip install --force-reinstall --no-deps transformers==[\d.]+, then", refused.value.hint)


def test_a_module_without_metadata_is_used(tmp_path, monkeypatch):
    """Such as one on PYTHONPATH, whose version is unknown."""
    install(tmp_path, "nupunkt", "0.7.0", code="")
    use(monkeypatch, tmp_path, "nupunkt")
    monkeypatch.setattr(requirements, "installed_version", lambda name: "")
    require("legal", "nupunkt")
    assert library_of("nupunkt").installed == requirements.UNKNOWN_VERSION


def test_a_folder_that_was_left_behind_is_no_library(tmp_path, monkeypatch):
    (tmp_path / "gone" / "__pycache__").mkdir(parents=True)
    use(monkeypatch, tmp_path)
    with pytest.raises(UsageError, match=r"^gone is not installed"):
        require("legal", "gone")


def test_labels_of_builds_are_no_part_of_a_version():
    torch = Package(name="torch", minimum="2.10", below="3", installed="2.13.0+cu130")
    assert torch.problem == ""
    assert remedy([torch]) == "pip install --force-reinstall --no-deps torch==2.13.0"


def test_a_missing_torch_is_installed_without_cuda_where_there_is_no_gpu(monkeypatch):
    hide(monkeypatch, "torch")
    with pytest.raises(UsageError, match=r"^torch is not installed \(required: torch>=2.10,<3\)") as refused:
        requirements.require_essential()
    assert refused.value.hint.startswith("pip install 'torch>=2.10,<3'; add --extra-index-url https://download.pytorch")


def test_the_requirements_are_read_in_milliseconds():
    declared.cache_clear()
    start = time.perf_counter()
    requirements.require_essential()
    require("chart", "transformers", "peft", "trl")
    assert time.perf_counter() - start < 0.3
