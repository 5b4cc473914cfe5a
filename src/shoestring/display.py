"""An answer shows itself, and how it looks is `report`'s to know.

Answers such as a plan are made beneath `report`, so they cannot call it. They call a function here, and `report`
registers how each kind of answer is drawn: `report/notebook.py` for `html`. A form of another kind, say text, would be
another function like it.
"""

from functools import singledispatch


@singledispatch
def html(answer: object) -> str:
    """The answer as one self-contained piece of HTML, which a notebook shows: its `_repr_html_` calls this."""
    raise NotImplementedError(f"nothing that was imported draws a {type(answer).__name__} as HTML")
