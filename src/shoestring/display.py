"""How answers such as a plan display themselves: as text by `print`, as HTML in a notebook.

Answers are made in packages below `report` and cannot import it. They call the functions here; the modules of `report`
in `RENDERERS` register a rendering for each class of answer, and are loaded at the first use.
"""

from collections.abc import Callable
from functools import singledispatch
from importlib import import_module
from typing import Any

RENDERERS = tuple(f"shoestring.report.{name}" for name in ("notebook", "text", "notebook_run", "text_run"))


class Displayed:
    """An answer that a notebook shows as HTML, and as readable text where there is no HTML."""

    def _repr_html_(self) -> str:
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
