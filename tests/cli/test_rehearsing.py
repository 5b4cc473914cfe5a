"""`shoestring rehearse`: its options and errors, what it asks for and prints. The rehearsal itself is made up."""

import json
import shlex
import sys
from types import SimpleNamespace

import pytest

import shoestring
from shoestring.base.errors import UsageError
from shoestring.cli.commands import rehearsing
from shoestring.planning.simulator import prepare
from shoestring.runs.rehearse.request import Progress
from tests.answers.rehearsals import finished, rehearsed


@pytest.fixture
def requests(tmp_path, monkeypatch):
    """The requests of rehearsals, whose answer is that of `answers`; the current folder has a script."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('trained')\n")
    (tmp_path / "train.ipynb").write_text("{}")
    (tmp_path / "notes.txt").touch()
    seen = SimpleNamespace(requests=[], answer=finished(), progress=())

    def rehearse(request, *, say, progress):
        seen.requests.append(request)
        say("compiling")
        for item in seen.progress:
            progress(item)
        return seen.answer

    monkeypatch.setitem(sys.modules, "shoestring.runs.rehearse.rehearse", SimpleNamespace(rehearse=rehearse))
    return seen


def test_script_and_its_arguments_are_requested(run_command, requests):
    status, out, err = run_command(
        *("rehearse", "train.py", "--on", "kaggle-t4", "--updates", 20, "--total-updates", 500, "--values", "none"),
        *("--stack", "colab", "--limit", "9h", "--", "--lr", "3e-4", "--", "a b"),
    )
    assert status == 0 and "compiling" in err and out.startswith("train.py fits kaggle-t4")
    (request,) = requests.requests
    assert str(request.script) == "train.py" and request.arguments == ("--lr", "3e-4", "--", "a b")
    assert (request.module, request.recipe, request.recipe_file, dict(request.set_values)) == (None, None, None, {})
    assert (request.updates, request.total_updates, request.values, request.stack) == (20, 500, "none", "colab")
    assert (request.target.name, request.session_seconds, request.json) == ("kaggle-t4", 9 * 3600, False)
    assert request.command == (
        "shoestring rehearse train.py --on kaggle-t4 --updates 20 --total-updates 500 --values none --stack colab "
        "--limit 32400s -- --lr 3e-4 -- 'a b'"
    )


def test_command_of_a_request_asks_for_the_same(run_command, requests):
    for line in (
        "rehearse train.py --on t4 --updates 3 -- -x 1",
        "rehearse -m pkg.train --on kaggle-t4x2 -- --lr 1",
        "rehearse torchrun --on kaggle-t4x2 --limit 90s -- --nproc_per_node 2 train.py",
        "rehearse temporal --on t4 --set epochs=1 --set size=tiny",
    ):
        assert run_command(*shlex.split(line))[0] == 0
        first = requests.requests.pop()
        assert run_command(*shlex.split(first.command)[1:])[0] == 0
        assert requests.requests.pop() == first


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("train.ipynb",), {"script": "train.ipynb"}),
        (("-m", "pkg.train"), {"module": "pkg.train"}),
        (("torchrun", "--", "--nproc_per_node", "2", "train.py"), {"module": "torchrun"}),
        (("accelerate", "--", "launch", "train.py"), {"module": "accelerate"}),
        (("temporal", "--set", "size=tiny"), {"recipe": "temporal"}),
        (("--recipe", "temporal"), {"recipe": "temporal"}),
    ],
)
def test_what_is_rehearsed(run_command, requests, arguments, expected):
    status, _, err = run_command("rehearse", *arguments)
    assert status == 0, err
    (request,) = requests.requests
    fields = ("script", "module", "recipe", "recipe_file")
    assert {name: str(value) for name in fields if (value := getattr(request, name))} == expected
    assert request.target.name == "kaggle-t4x2" and request.session_seconds == 12 * 3600
    assert request.arguments == tuple(arguments[arguments.index("--") + 1 :] if "--" in arguments else ())


def test_recipe_file_has_options(run_command, requests, tmp_path):
    (tmp_path / "mine.py").write_text(
        "class Mine:\n    width = 3\n    def model(self): ...\n    def batch(self, size): ...\n"
        "    def loss(self, model, batch): ...\n"
    )
    assert run_command("rehearse", "--recipe", "mine.py", "--set", "effective_batch=3")[0] == 0
    (request,) = requests.requests
    assert (str(request.recipe_file), request.recipe) == ("mine.py", None)
    assert dict(request.set_values) == {"effective_batch": "3"}
    status, _, err = run_command("rehearse", "--recipe", "mine.py", "--set", "effective_bach=3")
    assert status == 2 and "effective_batch" in err


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ((), "there is nothing to rehearse", "shoestring rehearse SCRIPT.py"),
        (("trian.py",), "there is no script 'trian.py'", "did you mean train.py?"),
        (("torchrn",), "there is no script 'torchrn'", "did you mean torchrun?"),
        (("nothing/at/all.py",), "there is no script 'nothing/at/all.py'", "-m takes a module"),
        ((".",), ". is a folder", "name a file in it"),
        (("notes.txt",), "notes.txt is not a script", "a Python file or a notebook"),
        (("train.py", "-m", "pkg"), "SCRIPT and -m were given", "follow --"),
        (("train.py", "--recipe", "temporal"), "SCRIPT and --recipe were given", "follow --"),
        (("train.py", "--set", "epochs=3"), "--set epochs=3: only a recipe has options", "-- --lr 3e-4"),
        (("train.py", "--updates", "0"), "--updates 0: updates count from 1", "leave it out"),
        (("train.py", "--total-updates", "-1"), "--total-updates -1: updates count", "leave it out"),
        (("train.py", "--on", "kagle-t4"), "there is no target 'kagle-t4'", "did you mean kaggle-t4?"),
        (("train.py", "--on", "cpu"), "--on cpu: there is no GPU to simulate", "kaggle-t4x2"),
        (("train.py", "--stack", "kagle"), "there is no stack 'kagle'", "did you mean kaggle?"),
        (("train.py", "--values", "some"), "--values some: there are no such values", "available: auto, none, all"),
        (("train.py", "--limit", "soon"), "--limit: 'soon' is not a duration", None),
        (("train.py", "3", "--on", "t4"), "3: stands before --", "shoestring rehearse SCRIPT.py --on t4 -- ..."),
        (("train.py", "--lr", "3"), "there is no option --lr", "the script's own arguments follow --"),
        (("train.py", "--update", "3"), "there is no option --update", "did you mean --updates"),
        (("--prepare", "train.py"), "--prepare is given alone, without SCRIPT", "shoestring rehearse --prepare"),
        (("--prepare", "--stack", "kagle"), "there is no stack 'kagle'", "did you mean kaggle?"),
        (("temporal", "--set", "epoch=3"), "invalid option", "epochs"),
    ],
)
def test_wrong_arguments_are_errors_with_hints(run_command, requests, arguments, message, hint):
    status, out, err = run_command("rehearse", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {message}"), err
    assert hint is None or hint in err
    assert requests.requests == []


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (finished(), 0),
        (rehearsed(), 0),
        (finished(end="stopped"), 0),
        (finished(end="interrupted"), 0),
        (finished(end="failed", error="ValueError: 1"), 1),
        (finished(end="host memory"), 1),
    ],
)
def test_status_is_1_only_if_the_script_fails_in_another_way(run_command, requests, answer, status):
    requests.answer = answer
    assert run_command("rehearse", "train.py")[0] == status


def test_json_is_the_only_output(run_command, requests):
    requests.answer = rehearsed()
    status, out, _ = run_command("rehearse", "train.py", "--json")
    assert status == 0 and json.loads(out) == json.loads(json.dumps(rehearsed().json()))
    assert requests.requests[0].json is True


def test_full_answer_has_the_whole_stack(run_command, requests):
    requests.answer = rehearsed()
    short, full = (run_command("rehearse", "train.py", *flags)[1] for flags in ([], ["--full"]))
    assert "the whole stack, 4 frames" in full and "the whole stack, 4" not in short


def test_folder_gets_the_files_and_is_not_overwritten(run_command, requests, tmp_path):
    arguments = ("rehearse", "train.py", "--out", "answer")
    assert run_command(*arguments)[0] == 0
    assert sorted(path.name for path in (tmp_path / "answer").iterdir()) == [
        "memory.csv", "rehearsal.html", "rehearsal.json",
    ]  # fmt: skip
    status, _, err = run_command(*arguments)
    assert status == 2 and "answer exists" in err
    assert len(requests.requests) == 1, "nothing is rehearsed whose files cannot be written"


def test_script_line_is_read_beside_the_answer(run_command, requests, tmp_path):
    error = rehearsed().out_of_memory
    frame = type(error.own_frame)(file="./train.py", line=1, function="<module>")
    requests.answer = rehearsed(out_of_memory=type(error)(**{**vars(error), "own_frame": frame}))
    _, out, _ = run_command("rehearse", "train.py")
    assert "in train.py:1 (print('trained'))" in " ".join(out.split())


def test_progress_is_a_line_now_and_then(run_command, requests, monkeypatch):
    monkeypatch.setattr(rehearsing, "_LINE_SECONDS", 0.0)
    numbers = {"phase": "training", "reserved_bytes": 2**30, "capacity_bytes": 2**32}
    requests.progress = (
        Progress(seconds=1.0, updates=1, total_updates=None, **numbers),
        Progress(seconds=62.0, updates=2, total_updates=1_000, **numbers),
    )
    _, _, err = run_command("rehearse", "train.py")
    assert "training, 1 update, 1.00 GiB of 4.00 GiB, 1.0 s\n" in err
    assert "training, 2 of 1,000 updates, 1.00 GiB of 4.00 GiB, 1 min 02 s\n" in err


def test_progress_on_a_terminal_is_one_line_with_a_bar(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(rehearsing, "_REDRAW_SECONDS", 0.0)
    progress = Progress(
        seconds=1.0, updates=1, total_updates=None, phase="loading", reserved_bytes=2**30, capacity_bytes=2**32
    )
    with rehearsing._show_progress() as (_, show):
        show(progress)
    written = capsys.readouterr().err
    assert written == f"loading, 1 update, {'█' * 5}{'░' * 15} 1.00 GiB of 4.00 GiB, 1.0 s\x1b[K\r\x1b[K"


@pytest.mark.parametrize("flags", [(), ("--stack", "kaggle")])
def test_prepare_installs_and_says_what_to_type(run_command, monkeypatch, flags):
    build = SimpleNamespace(version="2.13.0+cu130", folder="/cache/torch")
    stacks = []

    def prepared(stack, say):
        stacks.append(stack)
        say("installing")
        return build

    monkeypatch.setattr(prepare, "prepare", prepared)
    status, out, err = run_command("rehearse", "--prepare", *flags)
    assert status == 0 and "installing" in err and "Rehearsals run with PyTorch 2.13.0+cu130" in out
    _, out, _ = run_command("rehearse", "--prepare", *flags, "--json")
    stack = flags[1] if flags else None
    assert json.loads(out) == {"stack": stack, "torch": "2.13.0+cu130", "folder": "/cache/torch"}
    assert stacks == [stack, stack]


def test_verb_of_python_is_the_command(requests):
    rehearsal = shoestring.rehearse("train.py", on="kaggle-t4", arguments=["--lr", "1"], updates=2)
    assert rehearsal == requests.answer
    assert requests.requests[0].arguments == ("--lr", "1")
    with pytest.raises(UsageError, match="only a recipe"):
        shoestring.rehearse("train.py", epochs=3)


def test_help_names_the_arguments_of_the_script(run_command):
    status, out, _ = run_command("rehearse", "--help")
    assert status == 0 and "-- ARGUMENTS" in out
