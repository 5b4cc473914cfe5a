"""Write the reference pages that are made from the code: `python -m docs.generate` in the repository.

`python -m docs.generate --check` writes nothing. If pages differ, it names them and ends with status 1.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from docs.generate import commands, events, json_answers, recipes, settings, targets

REFERENCE = Path(__file__).parents[1] / "reference"
PAGES: Mapping[str, Callable[[], str]] = {
    "commands.md": commands.page,
    "recipes.md": recipes.page,
    "settings.md": settings.page,
    "targets.md": targets.page,
    "json.md": json_answers.page,
    "events.md": events.page,
}
"""The function that returns the text of each page, by the name of its file."""


def differing() -> dict[str, str]:
    """Return the text of each page that is missing or has another text."""
    texts = {name: page() for name, page in PAGES.items()}
    return {name: text for name, text in texts.items() if not _has_text(REFERENCE / name, text)}


def main(arguments: list[str]) -> int:
    """Write the pages, or check them with `--check`; return the exit status."""
    if arguments not in ([], ["--check"]):
        print("usage: python -m docs.generate [--check]", file=sys.stderr)
        return 2
    pages = differing()
    for name, text in pages.items():
        if arguments:
            print(f"docs/reference/{name} differs from the code: run python -m docs.generate", file=sys.stderr)
        else:
            (REFERENCE / name).write_text(text, "utf-8")
            print(f"docs/reference/{name}")
    return 1 if arguments and pages else 0


def _has_text(file: Path, text: str) -> bool:
    return file.is_file() and file.read_text("utf-8") == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
