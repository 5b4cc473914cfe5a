"""The answer of a rehearsal names no folder of the machine, and no access token."""

import dataclasses
import json
from pathlib import Path

import pytest

from shoestring.runs.rehearse.private import is_library, shared
from shoestring.runs.rehearse.rehearsal import Frame
from shoestring.runs.rehearse.source_lines import with_source_lines
from tests.answers.rehearsals import rehearsed

HOME, CURRENT = Path("/home/ann"), Path("/home/ann/secret/project")
SITE = "/home/ann/secret/project/.venv/lib/python3.12/site-packages"
WHEEL, TEMPORARY = "/home/ann/.cache/shoestring/simulator/torch-2.13.0-py3.12", "/tmp/rehearsal-x1"


def shorten(**changes):
    changes = {"private_folders": (TEMPORARY, SITE, WHEEL), **changes}
    return shared(rehearsed(**changes), home=HOME, current=CURRENT)


@pytest.mark.parametrize(
    ("path", "short"),
    [
        (f"{CURRENT}/train.py", "./train.py"),
        (f"{CURRENT}/pkg/data.py", "./pkg/data.py"),
        (f"{SITE}/transformers/trainer.py", "site-packages/transformers/trainer.py"),
        ("/usr/lib/python3/dist-packages/yaml/loader.py", "site-packages/yaml/loader.py"),
        ("/usr/lib/python3.12/runpy.py", "python3.12/runpy.py"),
        ("/home/ann/.pyenv/versions/3.12.1/lib/python3.12/runpy.py", "python3.12/runpy.py"),
        (f"{WHEEL}/torch/_tensor.py", "torch/_tensor.py"),
        (f"{TEMPORARY}/notebook.py", "notebook.py"),
        (f"{TEMPORARY}/environment/lib/python3.12/site-packages/peft/model.py", "site-packages/peft/model.py"),
        ("/home/ann/other/data.py", "~/other/data.py"),
        ("/home/anna/data.py", "/home/anna/data.py"),
        ("/opt/shared/data.py", "/opt/shared/data.py"),
        ("train.py", "train.py"),
        ("<frozen runpy>", "<frozen runpy>"),
    ],
)
def test_paths_are_shortened(path, short):
    frame = Frame(file=path, line=1, function="f")
    error = dataclasses.replace(rehearsed().out_of_memory, stack=(frame,), own_frame=frame)
    holder = dataclasses.replace(rehearsed().holders[0], frame=frame)
    rehearsal = shorten(out_of_memory=error, holders=(holder,))
    assert rehearsal.out_of_memory.stack[0].file == rehearsal.out_of_memory.own_frame.file == short
    assert rehearsal.holders[0].frame.file == short
    again = shared(rehearsal, home=HOME, current=CURRENT)
    assert again == rehearsal


@pytest.mark.parametrize(
    ("text", "short"),
    [
        (f"cannot open '{CURRENT}/data.csv'", "cannot open './data.csv'"),
        (f"cd {CURRENT}", "cd ."),
        (f"--data={CURRENT}/data --out {HOME}/runs", "--data=./data --out ~/runs"),
        (f"read at {SITE}/torch/x.py:3: item", "read at site-packages/torch/x.py:3: item"),
        ("--hub_token hf_abcdefghijklmnopqrstuv --lr 3", "--hub_token hf_... --lr 3"),
        ("--hub_token=abcdefgh1234 --lr 3", "--hub_token=... --lr 3"),
        ("--wandb-api-key 0123456789abcdef x", "--wandb-api-key ... x"),
        ("KeyError: {'password': 'correct-horse'}", "KeyError: {'password': '...'}"),
        ("cannot clone https://ann:geheim1@example.org/x.git", "cannot clone https://...@example.org/x.git"),
        ("--key AKIAABCDEFGHIJKLMNOP and token embedding", "--key AKIA... and token embedding"),
        ("max_new_tokens=12345678 --tokenizer meta/llama-3", "max_new_tokens=12345678 --tokenizer meta/llama-3"),
        ("learning_rate and/or 3/4", "learning_rate and/or 3/4"),
    ],
)
def test_texts_are_shortened(text, short):
    rehearsal = shorten(script=text, command=text, error=text, assumed=(text,), proposals=(text,), notes=(text,))
    assert {rehearsal.script, rehearsal.command, rehearsal.error} == {short}
    assert (*rehearsal.assumed, *rehearsal.proposals, *rehearsal.notes) == (short,) * 3


def test_nothing_of_the_machine_is_in_the_answer():
    frame = Frame(file=f"{CURRENT}/train.py", line=3, function="main")
    error = dataclasses.replace(rehearsed().out_of_memory, own_frame=frame, stack=(frame,) * 3)
    rehearsal = shorten(out_of_memory=error, command=f"shoestring rehearse {CURRENT}/train.py")
    for text in (json.dumps(rehearsal.json()), str(rehearsal), rehearsal._repr_html_(), repr(rehearsal)):
        assert "ann" not in text and "secret" not in text
    assert rehearsal.private_folders == ()


def test_home_that_is_a_link_is_known_by_both_names(tmp_path):
    (tmp_path / "disk" / "ann").mkdir(parents=True)
    (tmp_path / "ann").symlink_to(tmp_path / "disk" / "ann")
    text = f"{tmp_path}/ann/x.py {tmp_path}/disk/ann/y.py"
    assert shared(rehearsed(error=text), home=tmp_path / "ann", current=CURRENT).error == "~/x.py ~/y.py"


def test_root_as_the_current_folder_shortens_nothing():
    rehearsal = shared(rehearsed(command="cat /etc/hosts"), home=Path("/"), current=Path("/"))
    assert rehearsal.command == "cat /etc/hosts"


def test_numbers_stay():
    before, after = rehearsed().json(), shorten().json()
    assert {key for key in before if before[key] != after[key]} <= {"out_of_memory", "holders", "script"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("./train.py", False),
        ("~/other/data.py", False),
        ("notebook.py", False),
        ("site-packages/trl/trainer.py", True),
        ("torch/_tensor.py", True),
        ("python3.12/runpy.py", True),
        ("<frozen runpy>", True),
        (f"{SITE}/trl/trainer.py", True),
        ("/usr/lib/python3.12/runpy.py", True),
    ],
)
def test_libraries_are_told_from_own_code(path, expected):
    assert is_library(Frame(file=path, line=1, function="f")) is expected


def test_lines_of_own_files_are_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\n    loss.backward()\n")
    (tmp_path / "secret.txt").write_text("a\nb\n")
    frames = [Frame(file=name, line=2, function="f") for name in ("./train.py", "./secret.txt", "./missing.py")]
    error = dataclasses.replace(rehearsed().out_of_memory, own_frame=frames[0], stack=tuple(frames))
    holder = dataclasses.replace(rehearsed().holders[0], frame=frames[0])
    rehearsal = with_source_lines(rehearsed(out_of_memory=error, holders=(holder,)))
    assert [frame.text for frame in rehearsal.out_of_memory.stack] == ["loss.backward()", "", ""]
    assert rehearsal.out_of_memory.own_frame.text == rehearsal.holders[0].frame.text == "loss.backward()"
    assert "loss.backward" not in json.dumps(rehearsal.json())
