"""Renderers of documents: for a terminal, for a notebook and as a page.

In goes a `Document`; out come rich renderables or HTML. A renderer knows the elements of `answers/document.py` and no
answer, which `tests/answers/renderers` checks by its imports. HTML is self-contained: no scripts, nothing from
elsewhere; text is escaped where it becomes markup (`markup.py`).
"""
