"""The console that prints the screens."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from shoestring.base.streams import printable


class SafeConsole(Console):
    """A console for which names and messages are text: they contain neither markup nor terminal sequences."""

    def __init__(self, **arguments: Any) -> None:
        # In a notebook, rich would display what a caller captures.
        super().__init__(markup=False, emoji=False, highlight=False, force_jupyter=False, **arguments)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
