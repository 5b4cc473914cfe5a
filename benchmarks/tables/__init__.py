"""The tables of the documentation that are written from the results of benchmarks.

A page has a table between the comments `<!-- table: NAME -->` and `<!-- end of table -->`.
"""

import re
from collections.abc import Callable

from benchmarks.catalogue import ROOT
from benchmarks.tables import accuracy, benchmarks, survival

DOCS = ROOT / "docs"
_TABLE = re.compile(
    r"(?<=<!-- table: )(?P<name>[a-z_]+)(?P<open> -->\n)(?P<table>.*?)(?=<!-- end of table -->)", re.DOTALL
)

TABLES: dict[str, Callable[[], str]] = {
    "memory": accuracy.memory,
    "time": accuracy.time,
    "kaggle": survival.kaggle,
    "backup_losses": survival.backup_losses,
    "benchmarks": benchmarks.benchmarks,
}


def rewrite() -> list[str]:
    """Write all tables anew, and return the names of the pages that have changed."""
    changed = differing_pages()
    for name in changed:
        page = DOCS / name
        page.write_text(_with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
    return changed


def differing_pages() -> list[str]:
    """Return the names of the pages whose tables are not those of the results."""
    texts = {page.relative_to(DOCS).as_posix(): page.read_text(encoding="utf-8") for page in sorted(DOCS.rglob("*.md"))}
    return [name for name, text in texts.items() if _with_tables(text) != text]


def _with_tables(text: str) -> str:
    return _TABLE.sub(lambda match: f"{match['name']}{match['open']}{TABLES[match['name']]()}", text)
