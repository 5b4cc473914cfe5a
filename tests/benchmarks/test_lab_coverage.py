"""Reasons why the laboratory does not execute statements: of statements that exist, with tests that exist."""

import re
import tomllib
from pathlib import Path

import pytest
from benchmarks.lab.coverage import REASONS
from benchmarks.lab.cuda_statements import SOURCES, definitions

ROOT = Path(__file__).parents[2]
CONTENT = tomllib.loads(REASONS.read_text(encoding="utf-8"))


def test_reasons_are_of_statements_that_exist():
    statements = {}
    for definition in definitions():
        lines = (SOURCES / definition.file).read_text(encoding="utf-8").splitlines()
        name = f"{definition.file}:{definition.name}"
        statements[name] = {lines[number - 1].strip() for number in definition.lines}
    assert CONTENT.keys() <= statements.keys()
    gone = [
        f"{definition}: {statement}"
        for definition, reasons in CONTENT.items()
        for reason in reasons
        for statement in reason["statements"]
        if statement not in {"*", *statements[definition]}
    ]
    assert not gone


@pytest.mark.parametrize("definition", CONTENT)
def test_reasons_name_tests_that_exist(definition):
    for reason in CONTENT[definition]:
        text = " ".join(reason["reason"].split())
        files = re.findall(r"tests/[\w/]+\.py", text)
        assert files
        sources = "".join((ROOT / file).read_text(encoding="utf-8") for file in files)
        assert not [name for name in re.findall(r"\btest_\w+\b(?!\.py)", text) if f"def {name}(" not in sources]
