"""docs/design.md describes the code as it is."""

import json
import re
import sys
from pathlib import Path

import pytest
from docs.generate.packages import layers

from shoestring.cli.commands import app

ROOT = Path(__file__).parents[1]
DESIGN = (ROOT / "docs" / "design.md").read_text()
EXPLANATION = sorted((ROOT / "docs" / "explanation").glob("*.md"))
RECIPE = """
import json, sys
import torch
from pathlib import Path


class Mine:
    epochs, effective_batch = 1, 4

    def model(self):
        return torch.nn.Linear(2, 1)

    def batch(self, size):
        return torch.zeros(size, 2)

    def loss(self, model, batch):
        frame, calls = sys._getframe(1), []
        while frame:
            calls.append(f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}")
            frame = frame.f_back
        if "shoestring.api.training.train" in calls:
            Path(__file__).with_name("calls.json").write_text(json.dumps(calls[::-1]))
        return model(batch).square().mean()

    def data(self):
        return torch.randn(4, 2)
"""


def test_call_stack_of_an_update(tmp_path, monkeypatch):
    recipe = tmp_path / "mine.py"
    recipe.write_text(RECIPE)
    monkeypatch.setattr(sys, "argv", ["shoestring", "train", str(recipe), "--run", str(tmp_path / "run"), "--json"])
    app(standalone_mode=False)
    calls = [call for call in json.loads((tmp_path / "calls.json").read_text()) if call.startswith("shoestring.")]
    section = DESIGN.partition("## One update, from the command line to backward")[2].partition("\n## ")[0]
    described = re.findall(r"^\d+\. `(shoestring\.[^`]+)`", section, re.MULTILINE)
    assert len(described) > 5
    assert calls == described


PAGES = ["docs/design.md", "docs/log.md", "docs/claims.md", "docs/guides/data.md", "docs/guides/own_loop.md"]
PAGES += ["CONTRIBUTING.md", *(f"docs/explanation/{page.name}" for page in EXPLANATION)]


@pytest.mark.parametrize("page", PAGES)
def test_modules_and_tests_named_in_documents_exist(page):
    text = (ROOT / page).read_text()
    for path in re.findall(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.py)`", text):
        assert any((ROOT / folder / path).exists() for folder in ("", "src", "src/shoestring")), path
    for folder in re.findall(r"`(tests(?:/[a-z_0-9]+)+)/?`", text):
        assert (ROOT / folder).is_dir(), folder


def test_all_packages_are_described_from_the_top_down():
    table = DESIGN.partition("| package | content |")[2].partition("\n\n")[0]
    named = [name for row in re.findall(r"^\| `([a-z_ ]+)` \|", table, re.MULTILINE) for name in row.split()]
    there = {path.stem for path in (ROOT / "src" / "shoestring").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert there - {"__init__", "__main__", "__pycache__", "py"} == set(named)
    assert ["__main__", *named] == layers()


def test_few_files_know_how_many_processes_there_are():
    """Besides the exchange itself only the strategies and the assembly of a session do."""
    source = ROOT / "src" / "shoestring"
    knowing = [path.relative_to(source).as_posix() for path in source.rglob("*.py") if "ranks." in path.read_text()]
    assert len(knowing) <= 15, sorted(knowing)


def test_picture_has_every_package_once():
    drawn = re.findall(r'class="package">([a-z_]+)<', (ROOT / "docs" / "images" / "packages.svg").read_text())
    assert ["__main__", *drawn] == layers()
    assert "](images/packages.svg)" in DESIGN


def test_each_promise_has_tests():
    table = DESIGN.partition("| promise | tests |")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", table, re.MULTILINE))
    section = (ROOT / "README.md").read_text().partition("## What is promised")[2].partition("\n## ")[0]
    promises = [name.lower() for name in re.findall(r"^\d\. \*\*([^*.]+)\.\*\*", section, re.MULTILINE)]
    assert len(promises) > 5
    assert set(promises) <= set(rows)
    assert all("`tests/" in tests for tests in rows.values())


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_targets_of_make_that_are_named_exist(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE))
    assert named <= {(target, "") for target in targets} | {("", target) for target in targets}


def test_design_is_read_in_ten_minutes():
    assert len(DESIGN.split()) < 2400
