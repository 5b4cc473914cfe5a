"""Write the numbers of outputs on pages anew: `python -m tests.docs.renewing PAGE ...`, such as `guides/time`.

The blocks of a page are executed. A line of an output that the command has printed with other numbers gets these. Lines
that are wrapped elsewhere, and those with a `…`, stay as they are; they are named, to be renewed by hand.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.docs.snippets import DOCS, execute, normalized, pattern_of


def renewed(shown: str, printed: str) -> tuple[str, list[str]]:
    """Return the lines of `shown` with the numbers of those of `printed`, and the lines that are not among these."""
    lines, missing, rest = [], [], printed.splitlines()
    for line in shown.splitlines():
        pattern = pattern_of(line.strip())
        index = next((i for i, other in enumerate(rest) if pattern.fullmatch(normalized(other))), None)
        if not line.strip(". "):
            lines.append(line)
        elif index is None or "…" in line:
            lines.append(line)
            missing.append(line)
        else:
            lines.append(rest[index].rstrip())
            rest = rest[index + 1 :]
    return "\n".join(lines), missing


def renew(page: str) -> list[str]:
    """Execute a page, write it with the new numbers, and return the lines that were not printed.

    Raises:
        SnippetError: A block fails.
    """
    path, unprinted = DOCS / f"{page}.md", []
    text = path.read_text()

    def replace(shown: str, printed: str) -> None:
        nonlocal text
        new, missing = renewed(shown, printed)
        text = text.replace(shown, new, 1)
        unprinted.extend(missing)

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "page").mkdir()
        execute(page, Path(folder) / "page", replace)
    path.write_text(text)
    return unprinted


def main(pages: Sequence[str]) -> None:
    for page in pages:
        for line in renew(page):
            print(f"{page}: {line}")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
