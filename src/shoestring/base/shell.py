"""Commands that messages and files advise to type, as a shell reads them: whatever the names of their files are."""

import os
import re
import shlex
from collections.abc import Iterable
from pathlib import PurePath

_NOT_TYPED = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that a terminal would obey, and bytes that are not UTF-8."""
_ESCAPED = re.compile(rb"[^ -~]|['\\]")


def quote(word: str | PurePath) -> str:
    """Return a word as a shell reads it; a path that begins with a dash is not an option."""
    text = str(word)
    if isinstance(word, PurePath) and text.startswith("-"):
        text = f"./{text}"
    if not _NOT_TYPED.search(text):
        return shlex.quote(text)
    # bash, zsh and POSIX 2024 have this form.
    content = _ESCAPED.sub(lambda byte: b"\\x%02x" % ord(byte[0]), os.fsencode(text)).decode()
    return f"$'{content}'"


def join(words: Iterable[str | PurePath]) -> str:
    """Return the words of a command as a line that a shell divides into the same words."""
    return " ".join(map(quote, words))
