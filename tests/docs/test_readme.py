"""The commands and the code of the README run and print what it shows, and its links lead somewhere."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.snippets import page_blocks

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
README = (ROOT / "README.md").read_text()
MODEL = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
MODEL |= {"num_attention_heads": 4, "vocab_size": 100}


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def elsewhere(tmp_path):
    """A directory to leave runs in, with the examples and a model's configuration beside it."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    configuration = tmp_path / "path" / "to" / "config.json"
    configuration.parent.mkdir(parents=True)
    configuration.write_text(json.dumps(MODEL))
    return tmp_path


def commands() -> list[tuple[str, ...]]:
    others = [
        block.code for block in page_blocks("explanation/recipes") if block.reason.endswith("tests/docs/test_readme.py")
    ]
    lines = [line for block in [*blocks("sh"), *others] for line in block.splitlines()]
    return [tuple(shlex.split(line, comments=True)[1:]) for line in lines if line.startswith("shoestring ")]


def screens() -> dict[tuple[str, ...], list[str]]:
    """The commands whose output the README shows, with the output."""
    outputs = (block.splitlines() for block in blocks("console"))
    return {tuple(shlex.split(command)[2:]): lines for command, *lines in outputs}


ABOUT = ("temporal", "legal", "vqa", "cloud", "chart", "spiral", "hf:", "")


def about(command: tuple[str, ...]) -> str:
    """Return the recipe of a command, or of its run; an empty string for a command without one."""
    return next(name for name in ABOUT if any(name in word for word in command))


def test_outputs_are_of_listed_commands():
    assert screens()
    assert set(screens()) <= set(commands())


def test_all_commands_are_shown():
    verbs = (
        "recipes targets plan estimate rehearse check train evaluate predict export replay watch report kaggle notebook"
    )
    assert {command[0] for command in commands()} == set(verbs.split())


@pytest.mark.parametrize("name", ABOUT)
def test_commands_run_in_order(name, elsewhere):
    # A rehearsal needs what `rehearse --prepare` installs; tests/runs/rehearse has rehearsals.
    listed = [command for command in commands() if about(command) == name and command[0] != "rehearse"]
    assert listed
    for original in listed:
        command = shorter(original) if original[0] == "train" else original
        process = subprocess.run(
            [sys.executable, "-m", "shoestring", *command],
            cwd=elsewhere,
            capture_output=True,
            text=True,
            env={**os.environ, "COLUMNS": "100"},
        )
        assert process.returncode == 0, (command, process.stderr)
        if original in screens():
            assert [line.rstrip() for line in process.stdout.splitlines()] == screens()[original]


def shorter(command):
    """Return a command that trains less: the tiny temporal recipe, or the first second of another."""
    return (*command, *(("--set", "size=tiny", "--set", "epochs=2") if command[1] == "temporal" else ("--limit", "1s")))


def test_python_example_runs(elsewhere):
    (block,) = blocks("python")
    process = subprocess.run([sys.executable, "-c", block], cwd=elsewhere, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith("Mine fits on kaggle-t4")


def test_readme_is_short():
    assert len(README.splitlines()) < 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_exist(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_make_targets_exist():
    named = {line.split()[1] for block in blocks("sh") for line in block.splitlines() if line.startswith("make ")}
    assert named == {"demo", "test", "site"}
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in named)
