"""The folds of a cross-validation, as an option names them."""

import re


def is_fold(text: str) -> bool:
    """Return whether `text` is like `3/5`, the third of five folds."""
    match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    return match is not None and int(match[1]) <= int(match[2])
