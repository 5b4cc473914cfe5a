"""Pieces of Markdown that the generated pages are made of."""

import re
import textwrap
from collections.abc import Iterable, Sequence

_WIDTH = 120
_SPECIAL = re.compile(r"([\\*<>|\[\]])")
_CODE = re.compile(r"(`[^`]*`)")


def header(title: str) -> str:
    """Return the first lines of a generated page."""
    return f"<!-- Written by `python -m docs.generate` from the code, which is what to change. -->\n# {title}\n"


def escape(text: str) -> str:
    """Return text as it reads in a Markdown paragraph or cell; parts in backquotes stay code."""
    parts = _CODE.split(re.sub(r"\s+", " ", text))
    return "".join(part.replace("|", "\\|") if part.startswith("`") else _SPECIAL.sub(r"\\\1", part) for part in parts)


def paragraph(text: str) -> str:
    """Return Markdown on lines that are not too long. Words that would mean something else do not begin a line."""
    lines = textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return re.sub(r"\n(?=[-+#>]|\d+[.)])", " ", "\n".join(lines))


def capitalized(text: str) -> str:
    """Return text that begins with an upper case letter; a name at its beginning is not changed."""
    is_name = re.match(r"[\w.]*[_=0-9/(]|[a-z]+[A-Z]|`", text)
    return text if is_name else text[:1].upper() + text[1:]


def sentence(text: str) -> str:
    """Return text that begins with an upper case letter and ends with a full stop; a name in it is not changed."""
    text = capitalized(text)
    return text if not text or text.endswith((".", "!", "?", ":")) else f"{text}."


def code(text: object) -> str:
    """Return text as code in a paragraph or cell."""
    return f"`{text}`".replace("|", "\\|") if str(text) else ""


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; nothing if there are no rows. Cells are Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    if not lines:
        return ""
    return "\n".join(["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns), *lines]) + "\n"
