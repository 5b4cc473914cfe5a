"""The report of a run: its plan, its history and its results."""
