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
QWEN3 = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "head_dim": 128,
}
QWEN3 |= {"num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 151936, "tie_word_embeddings": True}
"""What its `config.json` on the hub says of the sizes of Qwen3-0.6B."""
NAME = "Qwen/Qwen3-0.6B"
CHAT = {"messages": [{"role": "user", "content": "What is 1?"}, {"role": "assistant", "content": "It is 1."}]}


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def elsewhere(tmp_path):
    """A directory to leave runs in, with the examples and conversations."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "chats.jsonl").write_text(f"{json.dumps(CHAT)}\n" * 20)
    return tmp_path


def write_hub(folder, *, is_trained):
    """Write a cache of the Hugging Face hub: the sizes of Qwen3-0.6B, or in its place a tiny model to be trained."""
    cached = folder / "hub" / f"models--{NAME.replace('/', '--')}"
    model = cached / "snapshots" / ("0" * 40)
    model.mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(model.name)
    if is_trained:
        from transformers import LlamaForCausalLM

        from shoestring_recipes.finetune import tiny

        LlamaForCausalLM(tiny.configuration()).save_pretrained(model)
        tiny.train_tokenizer([json.dumps(CHAT)]).save_pretrained(model)
    else:
        (model / "config.json").write_text(json.dumps(QWEN3))


def commands() -> list[tuple[str, ...]]:
    """Return the commands of the README, and those of pages whose blocks name this file as what executes them."""
    pages = [block for page in ("index", "explanation/recipes") for block in page_blocks(page)]
    others = [block.code for block in pages if block.reason.endswith("tests/docs/test_readme.py")]
    lines = [line for block in [*blocks("sh"), *others] for line in block.replace("\\\n", " ").splitlines()]
    words = [tuple(shlex.split(line, comments=True)[1:]) for line in lines if line.startswith("shoestring ")]
    return list(dict.fromkeys(words))


def screens() -> dict[tuple[str, ...], list[str]]:
    """The commands whose output the README shows, with the output."""
    outputs = (block.splitlines() for block in blocks("console"))
    return {tuple(shlex.split(command)[2:]): lines for command, *lines in outputs}


ABOUT = ("temporal", "legal", "vqa", "cloud", "chart", "finetune", "spiral", "hf:", "")


SLOW = {"check", "plan finetune"}
"""Commands that take 20 seconds or more, which `make docs-test` runs too."""


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
    if not os.environ.get("SHOESTRING_DOCS"):
        listed = [command for command in listed if not SLOW & {command[0], " ".join(command[:2])}]
    assert listed
    write_hub(elsewhere / "cached", is_trained=name == "finetune")
    environment = {**os.environ, "COLUMNS": "100", "HF_HOME": str(elsewhere / "cached"), "HF_HUB_OFFLINE": "1"}
    environment["SHOESTRING_PROBE"] = "0"
    for original in listed:
        command = shorter(original) if original[0] == "train" else original
        process = subprocess.run(
            [sys.executable, "-m", "shoestring", *command],
            cwd=elsewhere,
            capture_output=True,
            text=True,
            env=environment,
        )
        assert process.returncode == 0, (command, process.stderr)
        if original in screens():
            printed = [line.rstrip() for line in process.stdout.splitlines()]
            assert is_shown(printed, screens()[original]), process.stdout


def is_shown(printed: list[str], shown: list[str]) -> bool:
    """Return whether these lines are shown, in which a line `...` stands for any number of lines."""
    pattern = "".join("(?:.*\n)*" if line == "..." else re.escape(f"{line}\n") for line in shown)
    return bool(re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)))


def test_other_lines_than_those_that_are_printed_are_found():
    printed = ["fits", "memory 5.76 GiB", "weights 1 GiB", "time 2.8 s"]
    assert is_shown(printed, ["fits", "memory 5.76 GiB", "...", "time 2.8 s"]) and is_shown(printed, printed)
    assert not is_shown(printed, ["fits", "memory 5.77 GiB", "..."])
    assert not is_shown(printed, ["fits", "time 2.8 s", "..."]) and not is_shown(printed, printed[:3])


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
    named = set(re.findall(r"`make (\w+)`", README))
    assert named == {"demo", "test", "site"}
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in named)
