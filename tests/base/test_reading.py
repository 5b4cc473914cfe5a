"""`reading` opens and parses every file that others may have damaged, and no other module does."""

import ast
import json
import os
from pathlib import Path

import pytest

from shoestring.base import reading
from shoestring.base.reading import COUNT, TEXT, Kind, find_problems, number, parse_json, real_path

SOURCE = Path(__file__).parents[2] / "src"

SYSTEM = "files of the system: /proc and /sys"
PACKAGE = "sample data that a package contains"
PIPE = "a line from a process that this one has started"
PEER = "what another process of the run has sent"

EXCEPTIONS = {
    ("base/reading.py", "open"): "the module itself",
    ("base/reading.py", "loads"): "the module itself",
    ("training/engine/parallel/messages.py", "loads"): PEER,
    ("training/engine/parallel/ranks.py", "loads"): PEER,
    ("training/processes/replicas.py", "loads"): PEER,
    ("runs/train/meeting.py", "loads"): PEER,
    ("training/engine/parallel/rank_channel.py", "loads"): PEER,
    ("training/engine/parallel/rank_channel.py", "open"): "the null device",
    ("hardware/probe.py", "read_text"): SYSTEM,
    ("hardware/cpu_rates.py", "read_text"): SYSTEM,
    ("base/process_identity.py", "read_text"): SYSTEM,
    ("training/engine/machine_facts.py", "read_text"): SYSTEM,
    ("runs/check/memory.py", "read_text"): SYSTEM,
    ("runs/check/build.py", "loads"): PIPE,
    ("runs/check/child.py", "loads"): PIPE,
    ("planning/trace/child_process.py", "loads"): PIPE,
    ("planning/trace/child.py", "loads"): PIPE,
    ("planning/trace/child_process.py", "open"): "the null device",
    ("planning/trace/__main__.py", "open"): "standard input, an anonymous file of the parent process",
    ("integrations/state.py", "loads"): "JSON that the same line has made",
    ("remote/wheel.py", "read_text"): "the metadata of the installed package",
    ("base/packages/origin.py", "read_text"): "the metadata of the installed package",
    ("shoestring_recipes/temporal/bars.py", "load"): PACKAGE,
    ("shoestring_recipes/cloud/terrain.py", "load"): PACKAGE,
    ("shoestring_recipes/cloud/terrain.py", "open"): PACKAGE,
    ("shoestring_recipes/chart/synthetic.py", "open"): f"{PACKAGE}, or a chart that was drawn in memory",
    (
        "shoestring_recipes/chart/guide_rewards.py",
        "loads",
    ): "JSON in a completion, whose numbers stay text as in the guide's code",
    ("shoestring_recipes/finetune/gguf/vocabulary.py", "loads"): "JSON that the tokenizer in memory has made",
    ("answers/renderers/page/frame.py", "read_text"): "the style sheet of this package",
    ("training/checkpoint/files.py", "open"): "writing, and directories, whose entries are synced",
    ("training/checkpoint/mapped.py", "safe_open"): "maps the file, whose kind is checked before",
    ("training/checkpoint/foreign.py", "load"): "maps the file, whose kind is checked before, with weights_only",
    ("training/monitor/events.py", "open"): "appends to the record",
    ("training/run_directory/lock.py", "open"): "creates the lock; what is not a regular file is refused",
    ("runs/check/disk.py", "open"): "writes a new file",
    ("recipe/new.py", "open"): "writes a new file",
    ("recipe/new.py", "read_text"): "the template, a file of this package",
    ("recipe/template.py", "read_text"): "what a user begins with",
    ("shoestring_recipes/images.py", "open"): "an image in memory",
    ("base/streams.py", "open"): "the null device",
    ("training/run_directory/trust.py", "open"): "creates a lock, and a directory, which is locked",
    ("training/monitor/events.py", "loads"): "JSON that the same line has made",
    ("base/processes.py", "read_text"): SYSTEM,
    ("training/monitor/host_memory.py", "read_text"): SYSTEM,
    ("planning/trace/stored.py", "open"): "appends a trace",
    ("training/checkpoint/reserved.py", "open"): "writes the reserved space",
    ("runs/predict/output.py", "open"): "writes rows; what is not a regular file is refused",
    ("runs/evaluate.py", "open"): "writes a new file",
    ("runs/folds/predict.py", "open"): "writes a new file",
    ("training/monitor/sinks/csv_file.py", "open"): "writes a new file",
    ("remote/kaggle/client.py", "loads"): PIPE,
    ("remote/kaggle/client_process.py", "loads"): PIPE,
    ("remote/kaggle/client_process.py", "open"): "the null device, and a download, which is written",
    ("remote/kaggle/kernel/script.py", "read_text"): "the program, a file of the package",
    **{
        (f"remote/kaggle/kernel/program/{module}.py", name): "runs where Shoestring is not installed yet"
        for module, name in (
            ("checkpoints", "loads"),
            ("files", "loads"),
            ("files", "open"),
            ("machine", "open"),
            ("session", "open"),
            ("training", "read_text"),
        )
    },
    ("training/checkpoint/presence.py", "open"): "a directory, to compare it later",
    **{
        (f"planning/simulator/{module}.py", name): reason
        for module, name, reason in (
            ("build", "open", "creates a lock"),
            ("build", "read_bytes", "sources of this package"),
            ("prepare", "open", "creates a lock"),
            ("prepare", "read_bytes", "a command of the environment that runs"),
            ("stacks", "open", "creates a lock"),
            ("stacks", "read_bytes", "a list of this package"),
            ("stacks", "read_text", "a list of this package"),
            ("torch_builds", "loads", PIPE),
            ("torch_builds", "read_text", "metadata of the installed PyTorch"),
            ("inside/events", "open", "writes events, without Shoestring"),
        )
    },
    ("runs/rehearse/guard.py", "open"): f"{SYSTEM}, without Shoestring",
    ("runs/rehearse/rehearse.py", "open"): "the current folder, to return to it",
    ("runs/rehearse/host_memory.py", "open"): SYSTEM,
    ("runs/rehearse/host_memory.py", "read_text"): SYSTEM,
    ("planning/simulator/nvidia_smi.py", "open"): f"{SYSTEM}, and the file that its caller names, which is written",
}
"""Calls that open or parse a file and are not in `reading`, with the reason."""

READING_CALLS = {"open", "read_text", "read_bytes", "load", "loads", "load_file", "safe_open", "fromfile", "loadtxt"}
RECEIVERS = {
    "json",
    "np",
    "torch",
    "torch.serialization",
    "os",
    "Image",
    "Pillow",
    "Pictures",
    "gzip",
    "zipfile",
    "safetensors",
}
"""Modules and classes whose `load` or `open` reads a file; other methods `load` are a recipe's or a store's."""


def reading_calls(source: str) -> set[str]:
    """Return the names of the calls in `source` that open or parse a file."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id == "open":
            names.add("open")
        if isinstance(node.func, ast.Attribute) and node.func.attr in READING_CALLS:
            receiver = ast.unparse(node.func.value)
            is_file = receiver in RECEIVERS or receiver.endswith(("path", "file", ")"))
            if is_file or node.func.attr not in ("open", "load"):
                names.add(node.func.attr)
    return names


def test_only_the_reading_module_opens_and_parses_files():
    calls = {
        (path.relative_to(SOURCE).as_posix().removeprefix("shoestring/"), name)
        for path in SOURCE.rglob("*.py")
        for name in reading_calls(path.read_text())
    }
    assert calls - EXCEPTIONS.keys() == set(), "read the file with a function of shoestring.base.reading"
    assert EXCEPTIONS.keys() - calls == set(), "these exceptions are no longer needed"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": 1, "a": 2}', "a key occurs twice"),
        ("NaN", "NaN is not valid JSON"),
        ("1e400", "too large"),
        ("1" + "0" * 400, "too large"),
        ("[" * 102 + "]" * 102, "nested too deeply"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ('["\\ud800"]', "half a character"),
        ('{"\\udc80": 1}', "half a character"),
        (b'"\xff"', "invalid start byte"),
        (b'"\0"', "control character"),
    ],
)
def test_json_is_strict(text, problem):
    with pytest.raises(ValueError, match=problem):
        parse_json(text)


def test_json_of_other_programs_and_paths_is_read():
    assert parse_json('{"a": [1, Infinity], "a": 2}', strict=False) == {"a": 2}
    assert parse_json(json.dumps(os.fsdecode(b"/data/\xff")), paths=True) == "/data/\udcff"
    assert parse_json('["\\ud83d\\ude00"]') == ["😀"]
    with pytest.raises(ValueError, match="half a character"):
        parse_json('"\\ud800"', paths=True)


def test_numbers_that_a_float_cannot_represent_are_no_numbers():
    assert [number(value) for value in (1, 0.5, True, "1", None)] == [1.0, 0.5, None, None, None]
    assert [number(value) for value in (float("nan"), float("inf"), 1e200, 10**400, -(10**400))] == [None] * 5


def test_problems_name_the_value_and_the_kind():
    kinds = {"name": TEXT, "count": COUNT, "share": Kind(name="a share", types=(int, float), low=0, high=1)}
    assert find_problems({"name": "x", "count": 3, "share": 0.5, "other": []}, kinds) == []
    values = {"name": 1, "count": True, "share": 10**400}
    problems = ["name: '1' is not text", "count: 'True' is not an integer from 0 to 9007199254740992"]
    assert find_problems(values, kinds)[:2] == problems
    assert find_problems(values, kinds)[2].endswith("is not a share")


def test_only_regular_files_are_opened(tmp_path):
    (tmp_path / "file").write_text("1")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    for name, kind in (
        ("pipe", "a pipe"),
        (".", "a directory"),
        ("/dev/null", "a device"),
        ("link", "a symbolic link"),
    ):
        with pytest.raises(ValueError, match=f"it is {kind}, not a regular file"):
            reading.read_json(tmp_path / name)
    assert reading.read_json(tmp_path / "link", follow=True) == 1
    reading.require_regular_files(tmp_path / "file")  # no folder: perhaps the name of a model
    with pytest.raises(ValueError, match="pipe is a pipe"):
        reading.require_regular_files(tmp_path)


def test_sizes_and_lines_are_limited(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_bytes(b"short\n" + b"x" * 20 + b"\nlast")
    with pytest.raises(ValueError, match="it has 31 B, but at most 30 B are read"):
        reading.read_bytes(file, follow=False, max_bytes=30)
    monkeypatch.setattr(reading, "LINE_BYTES", 10)
    assert list(reading.read_lines(file, follow=False)) == [b"short\n", None, b"last"]
    assert list(reading.read_lines(file, follow=False, offset=6)) == [None, b"last"]
    with pytest.raises(ValueError, match="a line of more than 10 B"):
        reading.open_table(file)


def test_table_is_opened_without_byte_order_mark(tmp_path):
    (tmp_path / "table").write_bytes("\ufeffa,b\r\n1,ü".encode())
    with reading.open_table(tmp_path / "table") as file:
        assert file.read() == "a,b\r\n1,ü"


def test_links_in_a_circle_have_a_path(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "link").symlink_to("absent")
    assert real_path(tmp_path / "loop" / "x").name == "x"
    assert real_path(tmp_path / "link") == real_path(tmp_path) / "absent"


def test_paths_of_users_are_not_resolved_by_pathlib():
    of_python = {"frames.py", "reachable.py", "source.py", "private.py"}  # the folders of this Python and process
    sources = (Path(__file__).parents[2] / "src").rglob("*.py")
    assert {path.name for path in sources if ".resolve()" in path.read_text()} <= of_python
