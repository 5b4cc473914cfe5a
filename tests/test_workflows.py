"""The workflows of continuous integration name what is there: make targets, stacks, versions of Python, files."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from shoestring.version import __version__

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


def load(path: Path) -> dict:
    return yaml.safe_load(path.read_text())


def steps(workflow: dict) -> list[dict]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def matrix_rows() -> list[dict]:
    return load(ROOT / ".github" / "workflows" / "test.yml")["jobs"]["test"]["strategy"]["matrix"]["include"]


def test_there_are_two_workflows():
    assert [path.name for path in WORKFLOWS] == ["release.yml", "test.yml"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_their_digest(path):
    """A tag can be moved to other code, a digest cannot. The comment says which version it is."""
    uses = [line.strip() for line in path.read_text().splitlines() if "uses:" in line]
    assert len(uses) == sum("uses" in step for step in steps(load(path))) > 0
    for line in uses:
        assert re.fullmatch(r"- uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


def test_an_action_has_one_digest_everywhere():
    uses = {tuple(match.split("@")) for path in WORKFLOWS for match in re.findall(r"uses: (\S+)", path.read_text())}
    assert len({action for action, _ in uses}) == len(uses)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_make_targets_and_scripts_exist(path):
    commands = [step["run"] for step in steps(load(path)) if "run" in step]
    assert commands
    for command in commands:
        program, *words = command.split("${{")[0].split()
        assert program == "make", command
        assert {word for word in words if "=" not in word} <= TARGETS, command


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_may_only_read_and_end_in_time(path):
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] <= 240 for job in workflow["jobs"].values())


def test_stacks_are_tested_on_their_python():
    stacks = {row["stack"] for row in matrix_rows()}
    assert stacks == {path.stem for path in (ROOT / "constraints").glob("*.txt")}
    for row in matrix_rows():
        wanted = re.search(r"Python (3\.\d+)", (ROOT / "constraints" / f"{row['stack']}.txt").read_text())
        assert row["stack"] == "current" or row["python"] == wanted[1], row


def test_every_supported_python_is_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    supported = {match[1] for line in project["classifiers"] if (match := re.search(r"Python :: (3\.\d+)", line))}
    assert {row["python"] for row in matrix_rows() if row["stack"] == "current"} == supported


def test_only_the_release_of_a_tag_publishes():
    workflow = load(ROOT / ".github" / "workflows" / "release.yml")
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads `on` as true
    publish = workflow["jobs"]["publish"]
    assert (publish["needs"], publish["permissions"]) == ("build", {"id-token": "write"})
    assert publish["environment"]["name"] == "pypi"
    assert "secrets" not in (ROOT / ".github" / "workflows" / "release.yml").read_text()


def test_the_changelog_begins_with_this_version():
    heading = re.search(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert re.fullmatch(rf"{re.escape(__version__)} — \d{{4}}-\d\d-\d\d", heading[1])


def test_the_script_of_the_release_is_valid():
    script = ROOT / ".github" / "check_release.sh"
    assert script.stat().st_mode & 0o111
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    assert ".github/check_release.sh" in MAKEFILE


def test_hooks_are_local_and_use_the_tools_of_the_checkout():
    hooks = [hook for repository in load(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repository["hooks"]]
    assert {hook["language"] for hook in hooks} == {"system"}
    assert {hook["id"] for hook in hooks} == {"ruff-check", "ruff-format", "quick"}
