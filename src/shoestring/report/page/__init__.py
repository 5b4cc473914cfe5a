"""A run as a page: one self-contained HTML file of what was planned, what happened and what came out."""
