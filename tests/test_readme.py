"""What the README says can be typed as it stands, and where it points there is something."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text()
MODEL = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
MODEL |= {"num_attention_heads": 4, "vocab_size": 100}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def elsewhere(tmp_path):
    """A directory to leave runs in, with the examples and a model's configuration beside it."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    configuration = tmp_path / "path" / "to" / "config.json"
    configuration.parent.mkdir(parents=True)
    configuration.write_text(json.dumps(MODEL))
    return tmp_path


def commands() -> list[tuple[str, ...]]:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return [tuple(shlex.split(line, comments=True)[1:]) for line in lines if line.startswith("shoestring ")]


def screens() -> dict[tuple[str, ...], list[str]]:
    """What the README shows that a command prints."""
    shown = (block.splitlines() for block in blocks("console"))
    return {tuple(shlex.split(command)[2:]): lines for command, *lines in shown}


ABOUT = ("temporal", "legal", "vqa", "cloud", "chart", "spiral", "hf:", "")


def about(command: tuple[str, ...]) -> str:
    """The recipe that a command is about, or its run is of; empty where it is about none."""
    return next(name for name in ABOUT if any(name in word for word in command))


def test_every_screen_is_of_a_command_that_is_shown():
    assert screens()
    assert set(screens()) <= set(commands())


def test_every_verb_is_shown():
    verbs = {"recipes", "targets", "plan", "estimate", "check", "train", "evaluate", "report"}
    assert {command[0] for command in commands()} == verbs


@pytest.mark.parametrize("name", ABOUT)
def test_every_command_runs_in_its_order(name, elsewhere):
    chosen = [command for command in commands() if about(command) == name]
    assert chosen
    for each in chosen:
        command = shorter(each) if each[0] == "train" else each
        ended = subprocess.run(
            [sys.executable, "-m", "shoestring", *command],
            cwd=elsewhere,
            capture_output=True,
            text=True,
            env={**os.environ, "COLUMNS": "120"},
        )
        assert ended.returncode == 0, (command, ended.stderr)
        if each in screens():
            assert [line.rstrip() for line in ended.stdout.splitlines()] == screens()[each]


def shorter(command):
    """The same training of less: of temporal the tiny one, of others the beginning."""
    return (*command, *(("--set", "size=tiny", "--set", "epochs=2") if command[1] == "temporal" else ("--limit", "1s")))


def test_the_python_runs(elsewhere):
    (block,) = blocks("python")
    ended = subprocess.run([sys.executable, "-c", block], cwd=elsewhere, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_every_make_target_exists():
    named = {line.split()[1] for block in blocks("sh") for line in block.splitlines() if line.startswith("make ")}
    assert named == {"demo", "test"}
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in named)
