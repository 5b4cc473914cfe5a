"""HTML in which escaping is the rule: text becomes markup only through here."""

from collections.abc import Iterable
from typing import TypeAlias


class Markup(str):
    """HTML that is finished. Every other string is text, and is escaped where it becomes content."""

    __slots__ = ()


Content: TypeAlias = "Markup | str | Iterable[Content]"

EMPTY = Markup()


def element(tag: str, *content: Content, **attributes: str) -> Markup:
    """`<tag>` around `content`; `class_="x"` is written `class="x"`, `aria_label` is `aria-label`."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_escaped(value)}"' for name, value in attributes.items()
    )
    return Markup(f"<{tag}{written}>{join(content)}</{tag}>")


def join(content: Content) -> Markup:
    """All of `content` in a row."""
    if isinstance(content, Markup):
        return content
    if isinstance(content, str):
        return Markup(_escaped(content))
    return Markup("".join(map(join, content)))


def table(head: Iterable[Content], rows: Iterable[Iterable[Content]], *, numeric: Iterable[int] = ()) -> Markup:
    """A table that scrolls where it is too wide; the columns in `numeric` are set flush right."""
    right = set(numeric)

    def row(tag: str, cells: Iterable[Content]) -> Markup:
        return element(
            "tr",
            [
                element(tag, cell, class_="number") if column in right else element(tag, cell)
                for column, cell in enumerate(cells)
            ],
        )

    body = element("tbody", [row("td", cells) for cells in rows])
    return element("div", element("table", element("thead", row("th", head)), body), class_="scroll")


def facts(pairs: Iterable[tuple[Content, Content]]) -> Markup:
    """Names and their values, one pair a line."""
    lines = [element("div", element("dt", name), element("dd", value)) for name, value in pairs]
    return element("dl", lines, class_="facts")


def _escaped(text: str) -> str:
    from html import escape  # its table of entities would be a part of every `import shoestring`

    return escape(text)
