"""Renderers of documents: for a terminal, for a notebook and as a page. They know elements, and no answer."""
