"""The commands and scripts of the documentation run, and print what its pages show."""

import contextlib
import json
import os
import re
import subprocess
import sys

import pytest

from tests.docs import services, snippets
from tests.docs.snippets import EXECUTED, PAGES, REASONS, ROOT, SnippetError, compare, page_blocks, page_names, parse

QUICK = (
    "index",
    "explanation/estimates",
    "guides/troubleshooting",
)
"""Pages that take a few seconds. `make docs-test` executes the others as well."""

BLOCKS = [block for page in page_names() for block in page_blocks(page)]
EXECUTED_PAGES = sorted({block.page for block in BLOCKS if block.is_executed})
SELECTED_PAGES = EXECUTED_PAGES if os.environ.get("SHOESTRING_DOCS") == "1" else QUICK


@pytest.mark.parametrize("page", SELECTED_PAGES)
def test_page_runs(page, tmp_path):
    folder = tmp_path / "page"
    folder.mkdir()
    snippets.execute(page, folder)


def test_blocks_have_a_language():
    assert [str(block) for block in BLOCKS if not block.language] == []
    assert {block.language for block in BLOCKS} <= {*EXECUTED, "text", "json", "toml", "html"}


def test_blocks_are_left_out_for_known_reasons():
    for block in BLOCKS:
        if block.reason:
            path = re.fullmatch(r"executed by (.*)", block.reason)
            assert block.reason in REASONS or (path and (ROOT / path[1]).is_file()), f"{block}: {block.reason}"


def test_comments_of_blocks_are_known():
    names = {name for block in BLOCKS for name in block.comments}
    assert names <= {"not executed", "within", "executed with", "exit status"}


def test_hidden_files_belong_to_pages():
    used = {f"{block.page}/{block.comments['within']}" for block in BLOCKS if "within" in block.comments}
    present = {path.relative_to(PAGES).as_posix() for path in PAGES.rglob("*.py") if "files" not in path.parts}
    assert {path for path in present if not path.endswith("/setup.py")} == used
    assert {path.removesuffix("/setup.py") for path in present - used} <= set(page_names())


PAGE = """# Title

<!-- not executed: needs a GPU -->
```sh
nvidia-smi
```
```python title="mine.py"
class Mine: ...
```
- an item:

  ```console
  $ shoestring plan mine.py \\
      --on t4
  fits
  ```
"""


def test_blocks_of_a_page():
    first, second, third = parse("page", PAGE)
    assert (first.language, first.line, first.reason, first.is_executed) == ("sh", 4, "needs a GPU", False)
    assert (second.title, second.code, second.is_executed) == ("mine.py", "class Mine: ...\n", True)
    assert list(snippets.commands_of(third.code)) == [("shoestring plan mine.py \\\n    --on t4", "fits")]


def test_a_comment_below_the_title_holds_for_all_blocks():
    blocks = parse("page", PAGE.replace("# Title\n", "# Title\n<!-- page: needs the network -->\n"))
    assert [block.reason for block in blocks] == ["needs a GPU", "needs the network", "needs the network"]


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("", ""),
        ("memory  185 MiB at the peak ██▎", "memory  1.2 GiB at the peak ██████"),
        ("it takes about 2 min 00 s in\n1 session", "it takes about 37.5 s in 1\nsession"),
        ("it took 2.4 s)", "it took 2.4\ns)"),
        ("wheels-0bc92d", "wheels-737525"),
        (
            "fits",
            "reading the data and building the model of a: 15 s\ntracing 64 samples of a: 15 s of at most 300 s\nfits",
        ),
        ("first\n...\nlast", "first\nsecond\nlast"),
        ("...\nlast", "first\nlast"),
        ("first\n...", "first"),
        ("notes  data: real daily b… \nend", "notes  data: real daily bars from 2004 to 2008\nend"),
    ],
)
def test_equal_outputs(shown, printed):
    compare(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("fits", "does not fit"),
        ("fits", "fits\nand more"),
        ("fits", ""),
        ("first\n...\nlast", "first\nsecond"),
        ("...\nlast", "atlast"),
        ("update 1 of 3", "epoch 1 of 3"),
        ("kaggle-t4", "kaggle-t5"),
        ("micro_batch 256 · fp16", "micro_batch 256 · fp32"),
    ],
)
def test_different_outputs(shown, printed):
    with pytest.raises(SnippetError):
        compare(shown, printed)


def run_page(tmp_path, monkeypatch, text):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text(text)
    monkeypatch.setattr(snippets, "DOCS", tmp_path / "docs")
    (tmp_path / "page").mkdir()
    return snippets.execute("page", tmp_path / "page")


SHARING = """
```python title="mine.py"
print("one", 1)
```
```console
$ python mine.py
one 2
```
```python
import mine
```
```sh
test -f mine.py
```
<!-- exit status: 3 -->
```sh
exit 3
```
"""


def test_a_page_shares_a_working_directory(tmp_path, monkeypatch):
    assert run_page(tmp_path, monkeypatch, SHARING) == 5


INTERRUPTED = """
```python title="mine.py"
import time

print("begins", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("saved")
```
```console
$ python mine.py
begins
^C
saved
```
"""


def test_a_command_is_interrupted_after_its_output(tmp_path, monkeypatch):
    assert run_page(tmp_path, monkeypatch, INTERRUPTED) == 2


def test_a_command_is_killed_after_its_output(tmp_path, monkeypatch):
    assert run_page(tmp_path, monkeypatch, INTERRUPTED.replace("^C\nsaved", "Killed")) == 2


CHAIN = """
```python title="tools/chain.py"
import time

for line in ("12:00:01 session 1 is pushed", "12:00:02 session 1 runs"):
    time.sleep(0.2)
    print(line, flush=True)
time.sleep(60)
```
```console
$ python tools/chain.py
09:30:07 session 1 is pushed
09:30:08 session 1 runs
Killed
```
"""


def test_a_line_with_the_time_of_day_is_recognized_by_its_other_words(tmp_path, monkeypatch):
    assert run_page(tmp_path, monkeypatch, CHAIN) == 2


ARGUMENTS = """
```console
$ shoestring train mine.py --run runs/a  # a comment
go on: shoestring kaggle start --run runs/a
$ shoestring kaggle start mine.py \\
    --run runs/a
$ shoestring kaggle status --run runs/a
```
"""


def test_arguments_are_appended_to_the_commands_that_train():
    (block,) = parse("page", ARGUMENTS.replace("```console", "<!-- executed with: --allow-cpu -->\n```console"))
    assert list(snippets.commands_of(snippets._completed(block))) == [
        ("shoestring train mine.py --run runs/a --allow-cpu", "go on: shoestring kaggle start --run runs/a"),
        ("shoestring kaggle start mine.py \\\n    --run runs/a --allow-cpu", ""),
        ("shoestring kaggle status --run runs/a", ""),
    ]


WITH_SERVICE = """# Title
<!-- page with: greeting -->
```console
$ echo $GREETING
hello
```
"""


def test_a_service_runs_while_the_blocks_of_a_page_are_executed(tmp_path, monkeypatch):
    events = []

    @contextlib.contextmanager
    def greeting(folder):
        events.append("begins")
        yield {"GREETING": "hello"}
        events.append("ends")

    monkeypatch.setitem(services.SERVICES, "greeting", greeting)
    assert run_page(tmp_path, monkeypatch, WITH_SERVICE) == 1 and events == ["begins", "ends"]


def test_services_of_pages_are_known():
    assert {snippets.service_of(page) for page in page_names()} == {"", *services.SERVICES}


def test_the_loopback_kaggle_kills_the_first_session_once_it_has_two_checkpoints(tmp_path):
    kernel = """
import pathlib, time
for update in range(3):
    folder = pathlib.Path(f"run/checkpoints/update-{update}")
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    time.sleep(1)
"""
    with services.loopback_kaggle(tmp_path / "kaggle") as environment:
        folder = tmp_path / "kernel"
        folder.mkdir()
        (folder / "script.py").write_text(kernel)
        metadata = {"id": "me/kernel-a", "title": "kernel-a", "code_file": "script.py", "language": "python"}
        metadata |= {"kernel_type": "script", "enable_gpu": True}
        (folder / "kernel-metadata.json").write_text(json.dumps(metadata))
        environment = {**os.environ, **environment}
        kaggle = [sys.executable, "-c", "from kaggle.cli import main; main()"]
        subprocess.run([*kaggle, "kernels", "push", "-p", str(folder)], env=environment, check=True)
        status = ""
        while "RUNNING" in status or not status:
            status = subprocess.check_output([*kaggle, "kernels", "status", "me/kernel-a"], env=environment, text=True)
    assert "ERROR" in status, status
    assert (tmp_path / "kaggle/sessions/0001/working/run/checkpoints/update-1").is_dir()
    assert not (tmp_path / "kaggle/sessions/0001/working/run/checkpoints/update-2").is_dir()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```sh\nfalse\ntrue\n```\n", "exited with 1, not 0"),
        ("```console\n$ echo one\ntwo\n```\n", "but this was printed"),
        ("```python\n1 / 0\n```\n", "ZeroDivisionError"),
        ('```python title="mine.py"\n```\n', "no block uses the file mine.py"),
    ],
)
def test_a_block_that_fails_is_named(tmp_path, monkeypatch, text, problem):
    with pytest.raises(SnippetError, match=problem) as error:
        run_page(tmp_path, monkeypatch, text)
    assert str(error.value).startswith("docs/page.md:1: ")
