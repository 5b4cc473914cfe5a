"""Write what is made from the code, the reference pages and the picture of the packages: `python -m docs.generate`.

`python -m docs.generate --check` writes nothing. If files differ, it names them and ends with status 1.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from docs.generate import (
    commands,
    events,
    json_answers,
    measurement_schema,
    packages,
    recipes,
    run_directory,
    settings,
    targets,
)

DOCS = Path(__file__).parents[1]
PAGES: Mapping[str, Callable[[], str]] = {
    "reference/commands.md": commands.page,
    "reference/recipes.md": recipes.page,
    "reference/settings.md": settings.page,
    "reference/targets.md": targets.page,
    "reference/json.md": json_answers.page,
    "reference/events.md": events.page,
    "reference/run_directory.md": run_directory.page,
    "images/packages.svg": packages.picture,
    "reference/measurement.schema.json": measurement_schema.schema,
}
"""The function that returns the text of each file, by its path in `docs/`."""


def differing() -> dict[str, str]:
    """Return the text of each file that is missing or has another text."""
    texts = {name: page() for name, page in PAGES.items()}
    return {name: text for name, text in texts.items() if not _has_text(DOCS / name, text)}


def main(arguments: list[str]) -> int:
    """Write the files, or check them with `--check`; return the exit status."""
    if arguments not in ([], ["--check"]):
        print("usage: python -m docs.generate [--check]", file=sys.stderr)
        return 2
    pages = differing()
    for name, text in pages.items():
        if arguments:
            print(f"docs/{name} differs from the code: run python -m docs.generate", file=sys.stderr)
        else:
            (DOCS / name).write_text(text, "utf-8")
            print(f"docs/{name}")
    return 1 if arguments and pages else 0


def _has_text(file: Path, text: str) -> bool:
    return file.is_file() and file.read_text("utf-8") == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
