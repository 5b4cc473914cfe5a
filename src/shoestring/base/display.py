"""How answers such as a plan display themselves: as text by `print`, as HTML in a notebook.

Answers are made in packages below `answers` and cannot import it; `answers/faces.py` is loaded at the first use.
"""

from importlib import import_module
from typing import Any

_FACES = "shoestring.answers.faces"


class Displayed:
    """An answer that a notebook shows as HTML, and as readable text where there is no HTML."""

    def __init_subclass__(cls) -> None:
        # IPython prefers the `__repr__` of a class, such as a dataclass's, to a `_repr_pretty_` that is inherited.
        cls._repr_pretty_ = Displayed._repr_pretty_  # type: ignore[method-assign]

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook displays."""
        return html(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002  (the protocol of IPython)
        printer.text(text(self))


def html(answer: object) -> str:
    """Render an answer as self-contained HTML. A notebook calls this through `_repr_html_`."""
    return str(import_module(_FACES).html(answer))


def text(answer: object) -> str:
    """Render an answer as plain text. `print` calls this through `__str__`."""
    return str(import_module(_FACES).text(answer))
