"""How answers such as a plan display themselves: as text by `print`, as HTML in a notebook.

Answers are made in packages below `report` and cannot import it. They call the functions here; the modules of `report`
in `RENDERERS` register a rendering for each class of answer, and are loaded at the first use.
"""

from collections.abc import Callable
from functools import singledispatch
from importlib import import_module
from typing import Any

_NOTEBOOK = ("plan", "estimate", "comparison", "check", "outcome", "view")
RENDERERS = ("shoestring.answers.text", *(f"shoestring.answers.notebook.{name}" for name in _NOTEBOOK))


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


@singledispatch
def html(answer: object) -> str:
    """Render an answer as self-contained HTML. A notebook calls this through `_repr_html_`."""
    return _rendering(html, answer)(answer)


@singledispatch
def text(answer: object) -> str:
    """Render an answer as plain text. `print` calls this through `__str__`."""
    return _rendering(text, answer)(answer)


def _rendering(form: Any, answer: object) -> Callable[[object], str]:
    for module in RENDERERS:
        import_module(module)
    rendering: Callable[[object], str] = form.dispatch(type(answer))
    if rendering is form.dispatch(object):
        raise NotImplementedError(f"no rendering as {form.__name__} is registered for {type(answer).__name__}")
    return rendering
