"""The reference says what the code does: its generated pages are current, and real answers, events and files agree."""

import ast
import dataclasses
import importlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from docs.generate import __main__ as generate
from docs.generate.json_answers import ANSWERS, keys_of

import shoestring
from shoestring import pieces
from shoestring.base import errors
from shoestring.base.packages.requirements import Package
from shoestring.base.renamed import ATTRIBUTES
from shoestring.cli.commands import app
from shoestring.hardware.catalog import DEVICES, Target
from shoestring.remote.kaggle.forecast import write_first_plan
from shoestring.runs.check import preflight
from shoestring.runs.check.probe import probing
from shoestring.training.monitor.event_kinds import EVENT_KINDS, EVERY
from shoestring.training.run_directory.contents import BY_NAME
from tests.hardware.measured_files import GPU
from tests.readers import WORK
from tests.remote.kaggle.memory_kaggle import MemoryKaggle
from tests.remote.kaggle.test_chain import finish
from tests.runs.check.sample_facts import make_facts

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "shoestring"
REFERENCE = ROOT / "docs" / "reference"
RECIPE = ROOT / "tests" / "runs" / "predict" / "scorer.py"


in_documentation_tests = pytest.mark.skipif(
    not os.environ.get("SHOESTRING_DOCS"), reason="a longer execution: SHOESTRING_DOCS=1, or make docs-test"
)


# The generated pages


def test_generated_pages_are_current(capsys):
    assert generate.main(["--check"]) == 0, capsys.readouterr().err


def test_a_changed_page_is_named(capsys, monkeypatch, tmp_path):
    shutil.copytree(REFERENCE, tmp_path / "reference")
    (tmp_path / "reference" / "events.md").write_text("Events")
    monkeypatch.setattr(generate, "DOCS", tmp_path)
    names = ("reference/events.md", "reference/settings.md")
    monkeypatch.setattr(generate, "PAGES", {name: generate.PAGES[name] for name in names})
    assert generate.main(["--check"]) == 1
    named = capsys.readouterr().err
    assert "events.md" in named and "settings.md" not in named
    assert generate.main([]) == 0 and generate.main(["--check"]) == 0


# JSON answers


class Comparison:
    """Compares JSON values with the documented keys of an answer, and collects what has been seen."""

    def __init__(self, command):
        self.command = command
        (self.answer,) = [answer for answer in ANSWERS if answer.command == command]
        self.keys = keys_of(self.answer)
        self.seen, self.problems = set(), []

    def add(self, value):
        values = value if self.answer.is_list else [value]
        assert values and all(isinstance(item, dict) for item in values)
        for item in values:
            self._add_object(self.keys, item, "")

    def _add_object(self, keys, value, prefix):
        documented = {key.name: key for key in keys}
        self.problems += [f"{prefix}{name} is not documented" for name in value.keys() - documented.keys()]
        for name in value.keys() & documented.keys():
            key, item = documented[name], value[name]
            self.seen.add(f"{prefix}{name}")
            if not has_type(item, key.type):
                self.problems.append(f"{prefix}{name}={item!r:.60} is not {key.type}")
            if key.keys:
                for inner in item if isinstance(item, list) else [item] if item is not None else []:
                    self._add_object(key.keys, inner, f"{prefix}{name}.")

    def unseen(self):
        """The documented keys that no answer has had."""
        return set(names(self.keys)) - self.seen

    def require(self, *, unseen=()):
        """Require that no answer had an undocumented key or another type, and that all keys but these were there."""
        assert self.problems == []
        never = {name for name in self.unseen() if not name.startswith(tuple(unseen) or ("\0",))}
        assert never == set(), f"documented for {self.command}, and never there"


def names(keys, prefix="") -> Iterator[str]:
    for key in keys:
        yield f"{prefix}{key.name}"
        yield from names(key.keys, f"{prefix}{key.name}.")


def has_type(value, text):
    """Whether a JSON value is of a type as the page describes it."""
    kinds = {"integer": int, "number": (int, float), "text": str, "boolean": bool, "null": type(None)}
    for part in text.replace("true or false", "boolean").split(" or "):
        if part.startswith("`"):
            if value in re.findall(r'"(.*?)"', part):
                return True
            continue
        name = part.split(" ")[0]
        kind = list if part.startswith(("list", "[")) else dict if name == "object" else kinds.get(name, object)
        if isinstance(value, kind) and (kind in (bool, object) or not isinstance(value, bool)):
            return True
    return False


@pytest.fixture
def ask(run_command):
    """A function that returns the JSON answer of a command."""

    def answer(*arguments):
        status, out, err = run_command(*arguments, "--json")
        assert status == 0, err
        return json.loads(out)

    return answer


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run with a log, an export, predictions and a report."""
    folder = tmp_path_factory.mktemp("reference")
    (folder / "inputs.jsonl").write_text("4.0\n9.5\n")
    shoestring.train(str(RECIPE), run=folder / "run", log=["csv"], save_every_updates=1, keep_light=1)
    shoestring.report(folder / "run")
    return folder


def test_every_command_with_json_has_its_keys_on_the_page():
    group = typer.main.get_command(app)
    commands = {
        **group.commands,
        **{
            f"{name} {verb}": item for name in ("kaggle", "new") for verb, item in group.commands[name].commands.items()
        },
    }
    with_json = {name for name, command in commands.items() if any("--json" in item.opts for item in command.params)}
    described = {
        answer.command.split(" -")[0].removesuffix(" RECIPE").removesuffix(" with several") for answer in ANSWERS
    }
    assert described == with_json


def test_keys_of_recipes_and_targets(ask, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command, arguments in (
        ("recipes", ["recipes"]),
        ("recipes RECIPE", ["recipes", "temporal"]),
        ("targets", ["targets"]),
        ("new recipe", ["new", "recipe", "my_recipe"]),
    ):
        compared = Comparison(command)
        compared.add(ask(*arguments))
        compared.require(unseen=["device.measured."])
    measured = Target(name="t4", device=dataclasses.replace(DEVICES["t4"], measured=GPU), gpus=1)
    compared = Comparison("targets")
    compared.add([json.loads(json.dumps(measured.json()))])
    assert not [name for name in compared.unseen() if name.startswith("device.")] and not compared.problems


def test_keys_of_estimates_and_plans(ask, monkeypatch):
    compared = Comparison("estimate")
    compared.add(ask("estimate", RECIPE, "--on", "t4"))
    compared.require()
    compared, several = Comparison("plan"), Comparison("plan with several --on")
    answer = ask("plan", RECIPE, "--on", "kaggle", "--on", "a100-80", "--by", "30d")
    several.add(answer)
    several.require()
    compared.add(answer["plans"][0])
    compared.add(ask("plan", RECIPE, "--on", "kaggle-t4", "--disk", "1KB", "--set", "optimizer_states=8bit"))
    monkeypatch.setattr(probing, "run_child", lambda *_, **__: (STAGES, ""))
    measured = ask("plan", RECIPE, "--on", "cpu", "--probe")
    assert measured["measured"]["updates"] == 3
    compared.add(measured)
    compared.require()
    compared = Comparison("plan --for predict")
    compared.add(ask("plan", RECIPE, "--on", "t4", "--for", "predict"))
    compared.require()


PEAKS = {"bytes": 1000, "host_bytes": 1000}
STAGES = (
    {"stage": "start", "seconds": 1.0, "resident_bytes": 9},
    {"stage": "data", "samples": 20, "seconds": 0.1},
    {"stage": "model", "seconds": 2.0, "stages": 1, "total_updates": 10, "mean_length": None},
    *(
        {
            "stage": "update",
            "number": number,
            "loss_stage": 0,
            "purpose": "",
            "seconds": 0.1,
            "samples": 2,
            "loss": 1.0,
            "waiting_seconds": 0.0,
            "disturbed_share": 0.0,
            "length": None,
            **PEAKS,
        }
        for number in range(4)
    ),
    {"stage": "updates", "growth_bytes": 9, "state_bytes": 9, "device": "cpu", "micro_batch": 2, "loss": None},
    {"stage": "loading", "samples": 20, "seconds": 0.1},
    {"stage": "evaluation", "seconds": [0.1], "samples": [4], "left_bytes": 0, **PEAKS},
    {"stage": "answer", "seconds": 0.1, "count": 1, "is_complete": True, **PEAKS},
    {"stage": "done"},
)
"""What a trial of a few updates reports. A real one starts two processes, which takes seconds."""


@pytest.mark.parametrize("is_real", [False, pytest.param(True, marks=in_documentation_tests)])
def test_keys_of_checks(ask, monkeypatch, is_real):
    if not is_real:
        # A package that the image of the sample's platform lacks.
        packages = (Package(name="trl", minimum="1.10", installed="1.16.0", extra="chart"),)
        facts = make_facts(on="cpu", driver=None, platform=None, packages=packages)
        monkeypatch.setattr(preflight, "collect_facts", lambda *_: facts)
        monkeypatch.setattr(probing, "run_child", lambda *_, **__: (STAGES, ""))
    compared = Comparison("check")
    compared.add(ask("check", RECIPE, "--on", "cpu", "--set", "effective_batch=2"))
    compared.require(unseen=("image.",) if is_real else ())
    compared = Comparison("check --measure")
    compared.add(json.loads(json.dumps(GPU.json())))
    compared.require()


def test_keys_of_a_run(ask, finished, tmp_path):
    run, inputs = finished / "run", finished / "inputs.jsonl"
    commands = {
        "train": ["train", RECIPE, "--run", run],
        "evaluate": ["evaluate", run],
        "export": ["export", run, "--to", "safetensors"],
        "predict --out": ["predict", run, "--set", f"data={inputs}", "--out", tmp_path / "rows.jsonl"],
        "replay": ["replay", run, "--update", "2"],
        "watch": ["watch", run, "--once"],
        "notebook": ["notebook", RECIPE, "--out", tmp_path / "notebook"],
    }
    for command, arguments in commands.items():
        compared = Comparison(command)
        compared.add(ask(*arguments))
        compared.require(unseen=["not_finite."])


def test_keys_of_kaggle(ask, tmp_path):
    finish(tmp_path / "run", MemoryKaggle())
    write_first_plan(tmp_path / "run" / "kaggle", {"work": WORK.json()})
    for verb in ("status", "stop"):
        compared = Comparison(f"kaggle {verb}")
        compared.add(ask("kaggle", verb, "--run", tmp_path / "run"))
        compared.require()
    compared = Comparison("kaggle start --dry-run")
    compared.add(ask("kaggle", "start", RECIPE, "--run", tmp_path / "new", "--dry-run"))
    compared.require()


# Events


def emitted() -> Iterator[tuple[str, set[str]]]:
    """The kind of each event that the code emits, with the fields that are written beside the call."""
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        nodes = ast.walk(ast.parse(text)) if re.search(r"\b(emit|_record|append)\(\s*[\w.]*,?\s*\"", text) else ()
        for node in nodes:
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            position = {"emit": 0, "_record": 0, "append": 1}.get(name)
            if position is None or len(node.args) <= position or (name == "append" and not node.keywords):
                continue
            kind = node.args[position]
            if isinstance(kind, ast.Constant) and isinstance(kind.value, str):
                unpacked = [keyword.value for keyword in node.keywords if keyword.arg is None]
                literals = [part for value in unpacked for part in ast.walk(value) if isinstance(part, ast.Dict)]
                fields = {keyword.arg for keyword in node.keywords if keyword.arg}
                yield kind.value, fields | {str(key.value) for part in literals for key in part.keys if key}


def test_events_in_the_code_are_those_of_the_table():
    calls = list(emitted())
    assert {kind for kind, _ in calls} == EVENT_KINDS.keys()
    undocumented = [(kind, fields - EVENT_KINDS[kind].fields.keys()) for kind, fields in calls]
    assert [(kind, fields) for kind, fields in undocumented if fields] == []
    # Other fields are added by functions: each of them is a key or an argument somewhere in the code.
    table = (SOURCE / "monitor" / "event_kinds.py").resolve()
    sources = "".join(path.read_text() for path in SOURCE.rglob("*.py") if path.resolve() != table)
    written = {name for pair in re.findall(r'"(\w+)"|\b(\w+)=', sources) for name in pair}
    fields = {field for kind in EVENT_KINDS.values() for field in kind.fields} | EVERY.keys()
    assert fields - written == set()
    assert all(kind.optional <= kind.fields.keys() for kind in EVENT_KINDS.values())


def test_events_of_a_run_have_the_fields_of_the_table(finished):
    lines = [json.loads(line) for line in (finished / "run" / "events.jsonl").read_text().splitlines()]
    assert {"session", "memory", "progress", "evaluation", "save", "stop"} <= {line["event"] for line in lines}
    for line in lines:
        kind = EVENT_KINDS[line["event"]]
        fields = line.keys() - EVERY.keys()
        assert fields <= kind.fields.keys(), line["event"]
        assert kind.fields.keys() - kind.optional <= fields, line["event"]


# A run's directory


def test_files_of_a_run_are_on_the_page(finished):
    assert {path.name for path in (finished / "run").iterdir()} <= BY_NAME.keys()


# Python


def test_public_names_are_on_the_page():
    page = (REFERENCE / "python.md").read_text()
    identifiers = re.findall(r"^::: (\S+)$", page, re.MULTILINE)
    assert len(set(identifiers)) == len(identifiers)
    listed = {}
    for identifier in identifiers:
        module, _, name = identifier.rpartition(".")
        if module == "shoestring.integrations.trainer":  # which imports transformers, for seconds
            assert f"def {name}(" in (SOURCE / "integrations" / "trainer.py").read_text()
        else:
            listed[identifier] = getattr(importlib.import_module(module), name)  # the name is there
    verbs = {getattr(shoestring, name) for name in shoestring.__all__ if name != "__version__"}
    assert verbs <= set(listed.values())
    parts = set(pieces.__all__) - ATTRIBUTES["shoestring.pieces"].keys()
    assert parts <= {identifier.rpartition(".")[2] for identifier in identifiers}
    raised = {item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, Exception)}
    assert raised <= set(listed.values())
    assert all(item.__doc__ for item in listed.values())
