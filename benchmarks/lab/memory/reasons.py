"""Why the largest errors are as large as they are: found by comparing both sequences of allocations."""

import re

REASONS: tuple[tuple[str, str], ...] = ()
"""Patterns of configurations' ids, and the reason."""


def reason(configuration: str) -> str:
    """Return the reason for a configuration's error; empty if none is known."""
    return next((text for pattern, text in REASONS if re.search(pattern, configuration)), "")
