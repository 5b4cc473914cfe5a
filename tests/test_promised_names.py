"""Names that users rely on stay: those in `promised_names.json`, which were in the reference at commit 98d30b9.

The pages of the reference are generated from the code (`tests/docs/test_reference.py`), so a name that the code loses
is missing there. A name that is removed on purpose is removed from the file, with a line in the CHANGELOG.
`python -m tests.test_promised_names DOCS` prints the file's content for the pages in DOCS.
"""

import importlib
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("commands", "events", "json", "recipes", "run_directory", "settings", "targets")
MODULES = ("shoestring", "shoestring.api", "shoestring.errors", "shoestring.pieces", "shoestring.settings")


def reference_names(docs: Path) -> dict[str, list[str]]:
    """Return the headings of the reference and the names in the first columns of its tables, by page."""
    return {page: sorted(_page_names((docs / "reference" / f"{page}.md").read_text())) for page in PAGES}


def _page_names(text: str) -> set[str]:
    names, heading = set(), ""
    for line in text.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
            names.add(heading)
        if line.startswith("| ") and (first := re.split(r"(?<!\\)\|", line)[1]):
            # Of a path in a run's directory, what lies below a folder depends on the run.
            names |= {f"{heading}: {name.partition('/')[0]}" for name in re.findall(r"`([^`]+)`", first)}
    return names


def public_names(module: str) -> list[str]:
    imported = importlib.import_module(module)
    own = [name for name, value in vars(imported).items() if getattr(value, "__module__", None) == module]
    return sorted(name for name in getattr(imported, "__all__", own) if not name.startswith("_"))


def test_promised_names_are_there():
    promised = json.loads((Path(__file__).with_name("promised_names.json")).read_text())
    names = reference_names(ROOT / "docs")
    assert [f"{page}: {name}" for page in PAGES for name in promised[page] if name not in names[page]] == []
    for module in MODULES:
        imported = importlib.import_module(module)
        assert [name for name in promised[module] if not hasattr(imported, name)] == [], module


if __name__ == "__main__":
    promised = reference_names(Path(sys.argv[1])) | {module: public_names(module) for module in MODULES}
    sys.stdout.write(json.dumps(promised, indent=1) + "\n")
