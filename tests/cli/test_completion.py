"""Completion of the command line, in a real bash in a pseudo-terminal and as functions."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from shoestring.cli import completion

PROMPT = "ready> "


class Bash:
    """An interactive bash with shoestring's completion, in a pseudo-terminal."""

    def __init__(self, folder: Path, script: str) -> None:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        (folder / "completion.sh").write_text(script)
        pid, self._terminal = pty.fork()
        if not pid:
            os.chdir(folder)
            environment = {**os.environ, "PATH": path, "TERM": "dumb", "INPUTRC": os.devnull, "PS1": PROMPT}
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environment)
        self._pid = pid
        self.read_until(PROMPT)
        self.send(f"bind 'set completion-query-items 0'; source completion.sh; PS1='{PROMPT}'\n")
        self.read_until(f"\n{PROMPT}")

    def send(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def read_until(self, text: str, seconds: float = 30.0) -> str:
        """Return the output up to and including `text`. Raises AssertionError if it does not come in time."""
        output, deadline = "", time.monotonic() + seconds
        while text not in output:
            ready, _, _ = select.select([self._terminal], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no {text!r} within {seconds:g} s in {output!r}"
            output += (
                os.read(self._terminal, 65536).decode(errors="replace").translate({ord("\r"): None, ord("\a"): None})
            )
        return output

    def clear_line(self) -> None:
        self.send("\x15\n")
        self.read_until(f"\n{PROMPT}")

    def close(self) -> None:
        os.close(self._terminal)
        os.waitpid(self._pid, 0)


@pytest.fixture(scope="module")
def bash(tmp_path_factory):
    if not shutil.which("bash"):
        pytest.skip("there is no bash")
    folder = tmp_path_factory.mktemp("completion")
    run = folder / "runs" / "judgments"
    run.mkdir(parents=True)
    for name in ("plan.json", "state.json"):
        (run / name).write_text("{}")
    (folder / "data").mkdir()
    (folder / "data" / "bars.csv").write_text("")
    shown = subprocess.run(
        [Path(sys.executable).with_name("shoestring"), "--show-completion", "bash"],
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    shell = Bash(folder, shown.stdout)
    yield shell
    shell.close()


@pytest.mark.parametrize(
    ("typed", "completed"),
    {
        "verb": ("shoestring pl", "shoestring plan "),
        "recipe": ("shoestring plan te", "shoestring plan temporal "),
        "target": ("shoestring plan temporal --on col", "shoestring plan temporal --on colab-t4 "),
        "option of a recipe": ("shoestring plan temporal --set hor", "shoestring plan temporal --set horizon="),
        "setting": ("shoestring plan --set micro", "shoestring plan --set micro_batch="),
        "value": ("shoestring plan vqa --set size=t", "shoestring plan vqa --set size=tiny "),
        "run": ("shoestring evaluate r", "shoestring evaluate runs/judgments "),
        "path": ("shoestring plan vqa --set data=da", "shoestring plan vqa --set data=data/"),
        "path of a model": ("shoestring plan hf:da", "shoestring plan hf:data/"),
    }.values(),
)
def test_bash_completes(bash, typed, completed):
    bash.send(f"{typed}\t")
    bash.read_until(completed)  # the terminal echoes what was typed and what was completed
    bash.clear_line()


def test_bash_lists_the_values_of_an_option(bash):
    bash.send("shoestring plan temporal --set architecture=\t\t")
    listed = bash.read_until("transformer").split()
    assert {"ensemble", "lstm", "mlp", "transformer"} <= set(listed)
    bash.clear_line()


def test_assignment_suggests_keys_and_values():
    def suggest(incomplete, recipe="temporal"):
        return [word for word, _ in completion.assignment(SimpleNamespace(args=[recipe]), incomplete)]

    assert suggest("size") == ["size=", "size=full", "size=tiny"]
    assert suggest("epochs=") == ["epochs=50"]
    assert suggest("epochs=", recipe="mine.py") == ["epochs=1"]  # of every recipe, since the file is not executed
    assert suggest("cudnn_benchmark=") == ["cudnn_benchmark=false"]
    assert suggest("micro_batch") == ["micro_batch=", "micro_batch=none"]
    assert suggest("unknown=") == suggest("data=") == []
    assert {"epochs=", "lora_r=", "precision="} <= set(suggest(""))


def test_run_directories_below_the_current_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("a", "runs/b", "runs/too/deep", ".hidden/c", "runs/no_run"):
        (tmp_path / path).mkdir(parents=True)
        for name in ("plan.json", "state.json") if "no_run" not in path else ():
            (tmp_path / path / name).write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert [path for path, _ in completion.run_directory("")] == ["a", "runs/b"]
    assert [path for path, _ in completion.run_directory("r")] == ["runs/b"]
