"""The commands and scripts of the documentation run, and print what its pages show."""

import os
import re

import pytest

from tests.docs import snippets
from tests.docs.snippets import EXECUTED, PAGES, REASONS, ROOT, SnippetError, compare, page_blocks, page_names, parse

QUICK = (
    "index",
    "explanation/estimates",
    *(f"guides/{name}" for name in ("data", "disk", "memory", "notebook", "out_of_memory", "troubleshooting")),
    "reference/settings",
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
