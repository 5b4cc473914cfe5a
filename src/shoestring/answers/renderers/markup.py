"""HTML generation that escapes by default: text becomes markup only through this module."""

import base64
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from shoestring.base.streams import printable


class Markup(str):
    """Escaped HTML. Every other string is text, and is escaped when it becomes content."""

    __slots__ = ()


Content: TypeAlias = "Markup | str | Iterable[Content]"

EMPTY = Markup()


def element(tag: str, *content: Content, **attributes: str) -> Markup:
    """Wrap `content` in `<tag>`; `class_="x"` is written as `class="x"`, and `aria_label` as `aria-label`."""
    attribute_text = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_escape(value)}"' for name, value in attributes.items()
    )
    return Markup(f"<{tag}{attribute_text}>{join(content)}</{tag}>")


def join(content: Content) -> Markup:
    """Concatenate `content`, escaping its text."""
    if isinstance(content, Markup):
        return content
    if isinstance(content, str):
        return Markup(_escape(content))
    return Markup("".join(map(join, content)))


def table(head: Sequence[Content], rows: Iterable[Iterable[Content]], classes: Sequence[str] = ()) -> Markup:
    """Return a table that scrolls when it is too wide; `classes` has the class of each column, which may be empty."""

    def row(tag: str, cells: Iterable[Content]) -> Markup:
        content = []
        for column, cell in enumerate(cells):
            class_ = classes[column] if classes else ""
            content.append(element(tag, cell, class_=class_) if class_ else element(tag, cell))
        return element("tr", content)

    top = element("thead", row("th", head)) if head else EMPTY
    return element(
        "div", element("table", top, element("tbody", [row("td", cells) for cells in rows])), class_="scroll"
    )


def image(content: bytes, description: str) -> Markup:
    """Return a PNG or JPEG as a part of the page, with a description for those who do not see it."""
    kind = "png" if content.startswith(b"\x89PNG") else "jpeg"
    data = base64.b64encode(content).decode()
    return Markup(f'<img src="data:image/{kind};base64,{data}" alt="{_escape(description)}">')


def facts(pairs: Iterable[tuple[Content, Content]]) -> Markup:
    """Return a definition list with one name and value per line."""
    lines = [element("div", element("dt", name), element("dd", value)) for name, value in pairs]
    return element("dl", lines, class_="facts")


def _escape(text: str) -> str:
    from html import escape  # a late import: `import shoestring` would load its table of entities

    return escape(printable(text))
