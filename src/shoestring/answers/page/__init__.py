"""The report of a run: one self-contained HTML file with its plan, its history and its results."""
