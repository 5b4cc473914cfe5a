"""The fenced blocks of the pages in `docs/`, and their execution. `python -m tests.docs.snippets` lists all of them.

The blocks of a page run one after another in one working directory, which is empty at first:

- `sh` blocks are commands, `console` blocks are commands (`$ `) with the output that they print, `python` blocks are
  scripts. Blocks in other languages are not executed; `text` is the language of all else, so that each block has one.
- A block with `title="FILE"` is a file of that name, which a later block has to use.

The output is that of a terminal of 100 columns without colors. It is compared word by word, so that line breaks do not
count, and without bars, digests, numbers and the units of sizes and durations. A line `...` stands for any number of
lines, `…` at the end of a word for the rest of the text. Where the output has a line `^C` or `Killed`, the command gets
SIGINT or SIGKILL once it has printed a line that begins with the first two words above that line, or with all words
after the time of day if the line begins with one.

HTML comments on the lines above a block change its execution:

- `<!-- not executed: REASON -->` with one of the `REASONS`, or `executed by PATH` with a file of the repository. With
  `page` in place of `not executed`, below the title of a page, it holds for all blocks of the page.
- `<!-- within: FILE -->`: the block is a part of FILE in `tests/docs/pages/PAGE/`, in place of its line `# block`.
- `<!-- executed with: ARGUMENTS -->`: these arguments are appended to each `shoestring train` and `shoestring kaggle
  start`, to train less.
- `<!-- exit status: N -->` of the only or last command, if it is not 0.
- `<!-- page with: SERVICE -->`, below the title of a page: one of the `SERVICES` in `services.py` runs while the blocks
  of the page are executed, and they have its environment.

PAGE is the path of the page in `docs/` without its suffix. What is in `tests/docs/pages/PAGE/files/` is in the working
directory from the beginning; then `setup.py` beside that folder is executed there.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from tests.docs.services import SERVICES

ROOT = Path(__file__).parents[2]
DOCS, PAGES = ROOT / "docs", Path(__file__).parent / "pages"
EXECUTED = ("sh", "console", "python")
REASONS = (
    "installs packages",
    "needs a GPU",
    "needs several machines",
    "needs a terminal",
    "needs the network",
    "needs an account at Kaggle",
    "needs an account at Hugging Face",
    "needs files that are not public",
    "takes hours",
    "names files of yours",
)
COMMAND_SECONDS = 1800

_FENCE = re.compile(
    r"(?P<comments>(?:^ *<!--[^\n]*-->\n)*)^(?P<indent> *)```(?P<language>[\w-]*) *(?P<attributes>[^\n]*)\n"
    r"(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_COMMENT = re.compile(r"<!-- *(?P<name>[a-z ]+): *(?P<value>.*?) *-->")
_PAGE_COMMENT = re.compile(r"^<!-- *page: *(?P<reason>.*?) *-->$", re.MULTILINE)
_SERVICE_COMMENT = re.compile(r"^<!-- *page with: *(?P<service>.*?) *-->$", re.MULTILINE)
_TRAINING = re.compile(
    r"^(?P<command>(?:\$ |.*-m -- )?shoestring (?:train|kaggle start) (?:.*\\\n)*.*?)(?P<comment> +#.*)?$", re.MULTILINE
)
_SIGNAL = re.compile(
    r"^(?:\d\d:\d\d:\d\d (?P<event>.+)|(?P<words>\S+(?: \S+)?).*)\n(?P<signal>\^C|Killed)$", re.MULTILINE
)
_TIME_OF_DAY = re.compile(r"^\d\d:\d\d:\d\d ", re.MULTILINE)
_UNITS = r"(?:[KMGT]i?B|B|bytes|d|h|min|s|ms|us|µs|%)\b|%"
_NUMBER = re.compile(rf"(?<![\w.])[-+±]?\d[\d,.:]*(?:e[-+]?\d+)?(?: ?(?:{_UNITS}))?")
_HEXADECIMAL = re.compile(r"\b(?=[a-f]*\d)[\da-f]{6,}\b")
_SLOW = re.compile(r"^(?:reading the data and building|tracing \d+ samples) .*: \d+ s\b.*\n", re.MULTILINE)
"""What a command says on standard error of what takes longer than 15 s, on a machine with much else to do."""
_BAR = re.compile(r"[█▉▊▋▌▍▎▏━╸╺]+")


class SnippetError(AssertionError):
    """A block that cannot be executed, or that does not print what it shows."""


@dataclass(frozen=True, kw_only=True)
class Block:
    page: str
    """The path of the page in `docs/`, without its suffix."""
    line: int
    language: str
    title: str
    code: str
    comments: dict[str, str] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """Why the block is not executed; empty if it is."""
        return self.comments.get("not executed", "")

    @property
    def is_executed(self) -> bool:
        return bool(self.title or self.language in EXECUTED) and not self.reason

    def __str__(self) -> str:
        return f"docs/{self.page}.md:{self.line}"


def page_names() -> list[str]:
    """Return the names of all pages in `docs/`: their paths without the suffix."""
    return sorted(path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md"))


def page_blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page of `docs/` in order."""
    return parse(page, (DOCS / f"{page}.md").read_text())


def parse(page: str, text: str) -> list[Block]:
    """Return the fenced blocks of a page with that text."""
    common = _PAGE_COMMENT.search(text)
    blocks = []
    for match in _FENCE.finditer(text):
        comments = {comment["name"]: comment["value"] for comment in _COMMENT.finditer(match["comments"])}
        if common:
            comments.setdefault("not executed", common["reason"])
        title = re.search(r'title="([^"]*)"', match["attributes"])
        blocks.append(
            Block(
                page=page,
                line=text.count("\n", 0, match.start("language")) + 1,
                language=match["language"],
                title=title[1] if title else "",
                code=textwrap.dedent(match["code"]),
                comments=comments,
            )
        )
    return blocks


def service_of(page: str) -> str:
    """Return the name of the service that a page has; empty if it has none."""
    match = _SERVICE_COMMENT.search((DOCS / f"{page}.md").read_text())
    return match["service"] if match else ""


def pattern_of(shown: str) -> re.Pattern[str]:
    """Return the pattern that normalized output has to match as a whole, for the output that a page shows."""
    parts = [normalized(part) for part in re.split(r"^ *\.\.\.$", shown, flags=re.MULTILINE)]
    words = [re.escape(part).replace("…", r"\S*(?: \S+)*?") for part in parts]
    return re.compile(r"(?:\S+ )*?".join(words))


def normalized(output: str) -> str:
    """Return the words of an output, each with a space behind it, without bars, with `#` for numbers and units."""
    text = " ".join(_BAR.sub("", output).split())  # also between a number and its unit
    words = _NUMBER.sub("#", _HEXADECIMAL.sub("0", text)).split()
    return "".join(f"{word} " for word in words).replace("# #", "#").replace("# #", "#")


def compare(shown: str, printed: str) -> None:
    """Raise SnippetError if a command has not printed what a page shows."""
    if not pattern_of(shown).fullmatch(normalized(_SLOW.sub("", printed))):
        raise SnippetError(f"the page shows\n{shown}\nbut this was printed:\n{printed}")


def commands_of(code: str) -> Iterator[tuple[str, str]]:
    """Yield the commands of a console block with the output that it shows."""
    for part in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        end = next(i for i, line in enumerate(lines) if not line.endswith("\\")) + 1
        yield "\n".join(lines[:end]), "\n".join(lines[end:])


def execute(page: str, folder: Path, check: Callable[[str, str], None] = compare) -> int:
    """Execute the blocks of a page in an empty folder; return their number, which is not 0.

    `check` is called with what the page shows and what was printed, for each command of a console.

    Raises:
        SnippetError: A block fails, or prints something else than the page shows.
    """
    blocks = [block for block in page_blocks(page) if block.is_executed]
    assert blocks, f"docs/{page}.md has nothing to execute"
    if (PAGES / page / "files").exists():
        shutil.copytree(PAGES / page / "files", folder, dirs_exist_ok=True)
    service = service_of(page)
    with SERVICES[service](folder.parent / "service") if service else contextlib.nullcontext({}) as variables:
        if (PAGES / page / "setup.py").exists():
            _run(f"python {PAGES / page / 'setup.py'}", folder, variables=variables)
        for index, block in enumerate(blocks):
            try:
                _execute_block(block, folder, blocks[index + 1 :], check, variables)
            except SnippetError as error:
                raise SnippetError(f"{block}: {error}") from None
    return len(blocks)


def _execute_block(
    block: Block, folder: Path, later: list[Block], check: Callable[[str, str], None], variables: Mapping[str, str]
) -> None:
    code = _completed(block)
    status = int(block.comments.get("exit status", 0))
    if block.title:
        names = {Path(block.title).stem, Path(block.title).parent.name} - {""}
        if not any(name in other.code for other in later for name in names):
            raise SnippetError(f"no block uses the file {block.title}")
        (folder / block.title).parent.mkdir(parents=True, exist_ok=True)
        (folder / block.title).write_text(code)
    elif block.language == "python":
        _run('python -c "$CODE"', folder, code=code, status=status, variables=variables)
    elif block.language == "sh":
        _run(code, folder, status=status, variables=variables)
    else:
        for command, shown in commands_of(code):
            check(shown, _run(command, folder, shown=shown, status=status, variables=variables))


def _completed(block: Block) -> str:
    """Return the code of a block within the file that its comment names, or with the arguments that it appends."""
    if name := block.comments.get("within"):
        whole = (PAGES / block.page / name).read_text()
        place = re.search(r"^( *)# block\n", whole, re.MULTILINE)
        assert place, f"{name} has no line # block"
        return whole[: place.start()] + textwrap.indent(block.code, place[1]) + whole[place.end() :]
    if arguments := block.comments.get("executed with"):
        return _TRAINING.sub(lambda match: f"{match['command']} {arguments}", block.code)
    return block.code


def _run(
    command: str,
    folder: Path,
    *,
    shown: str = "",
    code: str = "",
    status: int = 0,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Run a command of bash and return what it prints.

    Raises:
        SnippetError: It exits with another status, or runs for too long.
    """
    signalled = _SIGNAL.search(shown)
    status = -signal.SIGKILL if signalled and signalled["signal"] == "Killed" else status
    deadline = time.monotonic() + COMMAND_SECONDS
    (folder.parent / "output").unlink(missing_ok=True)
    with (folder.parent / "output").open("a") as output:
        process = subprocess.Popen(
            ["bash", "-e", "-o", "pipefail", "-c", command],
            cwd=folder,
            env=_environment(folder, code) | dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
                if signalled and _has_printed(signalled["event"] or signalled["words"], _text(output.name)):
                    if signalled["signal"] == "Killed":
                        process.kill()
                        process.wait()
                        time.sleep(0.5)  # its children end with it, and may be printing a line
                    with Path(output.name).open("a") as file:
                        file.write(f"{signalled['signal']}\n")
                    if signalled["signal"] == "^C":  # which a terminal prints before the process does anything
                        os.killpg(process.pid, signal.SIGINT)
                    signalled = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    printed = _text(output.name)
    if process.wait() != status:
        raise SnippetError(f"{command or code}\nexited with {process.returncode}, not {status}:\n{printed}")
    return printed


def _has_printed(beginning: str, text: str) -> bool:
    """Return whether a line of `text` begins so, after the time of day if it begins with one."""
    return f"\n{beginning}" in "\n" + _TIME_OF_DAY.sub("", text)


def _text(path: str) -> str:
    return Path(path).read_text(errors="replace")


def _environment(folder: Path, code: str) -> dict[str, str]:
    """Return the environment of a reader's terminal: this interpreter's commands, no settings, and no network."""
    paths = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "XDG_STATE_HOME": str(folder.parent / "state")}
    search = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder.parent / "hub")}
    return {**os.environ, **paths, **offline, "PATH": search, "COLUMNS": "100", "OMP_NUM_THREADS": "1", "CODE": code}


def main() -> None:
    """Print each block with its number of lines and whether it is executed, and the sums."""
    blocks = [block for page in page_names() for block in page_blocks(page)]
    for block in blocks:
        kind = "executed" if block.is_executed else f"not executed: {block.reason}" if block.reason else "shown"
        print(f"{block}  {block.title or block.language}  {kind}")  # noqa: T201
    reasons = [block.reason for block in blocks if block.reason]
    print(f"{sum(block.is_executed for block in blocks)} executed, {len(reasons)} not executed")  # noqa: T201
    for reason in sorted(set(reasons)):
        print(f"{reasons.count(reason):4} {reason}")  # noqa: T201


if __name__ == "__main__":
    main()
