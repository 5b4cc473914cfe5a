"""Presentation: results in a terminal and in a notebook, and the HTML report of a run."""
