import subprocess
import sys
from pathlib import Path

import pytest

from shoestring.launch import launch

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_spirals_are_told_apart(tmp_path):
    example = EXAMPLES / "spiral.py"
    assert len(example.read_text().splitlines()) < 40
    outcome = launch(str(example), {}, run=tmp_path)
    assert outcome.status == "finished"
    assert outcome.metrics["validation"]["loss"] < 0.1


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_every_example_can_be_planned(example):
    ended = subprocess.run(
        [sys.executable, "-m", "shoestring", "plan", example, "--on", "kaggle-t4"], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
