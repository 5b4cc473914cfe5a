"""The documentation: its site, its reference, its snippets."""
