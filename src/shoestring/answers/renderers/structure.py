"""The structure of a document as HTML, which a notebook and a page share."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from shoestring.answers.document import (
    Code,
    Command,
    Document,
    Element,
    Fact,
    Items,
    KeyFigure,
    Labels,
    Paragraph,
    Section,
)

_TEXTS = (Paragraph, Labels, Items, Command, Code)
"""Elements that stand beside the title of a fact."""


def split(document: Document) -> tuple[Sequence[Element], Sequence[Element]]:
    """Return what stands between the heading and the key figures, and what follows them: the first section and on."""
    sections = [index for index, item in enumerate(document.content) if isinstance(item, Section)]
    first = sections[0] if sections else len(document.content)
    return document.content[:first], document.content[first:]


def key_figures(content: Sequence[Element]) -> Iterator[KeyFigure]:
    """Yield the key figures of the paragraphs in `content`, but not those of documents in it."""
    for item in content:
        match item:
            case Paragraph(figure=KeyFigure() as figure):
                yield figure
            case Section(content=inner):
                yield from key_figures(inner)


def groups(content: Sequence[Element]) -> Iterator[tuple[list[Fact], list[Element]]]:
    """Yield facts with texts that follow each other, which are one table, and then the elements up to the next ones."""
    facts: list[Fact] = []
    for is_row, group in groupby(content, key=_is_row):
        if is_row:
            facts = [fact for fact in group if isinstance(fact, Fact)]
        else:
            yield facts, list(group)
            facts = []
    if facts:
        yield facts, []


def _is_row(item: Element) -> bool:
    return isinstance(item, Fact) and not item.is_folded and all(isinstance(part, _TEXTS) for part in item.content)


def title(text: str) -> str:
    """Return a title with a capital letter."""
    return text[:1].upper() + text[1:]
