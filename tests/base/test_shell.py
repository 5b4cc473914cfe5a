"""Commands that are advised can be copied into a shell."""

import subprocess
from pathlib import Path

import pytest

from shoestring.base import shell

NAMES = ("plain", "with space", "it's", "-x", "~", "a\nb", "a\\b\x1b[0m'", "run\udcff", "$HOME", "é")


@pytest.mark.parametrize(
    "name", ["plain", "with space", "it's", "-x", "~", "a\nb", "a\\b\x1b[0m'", "run\udcff", "$HOME", "é"]
)
def test_shell_reads_the_same_word(name):
    command = f"printf %s {shell.quote(Path(name))}"
    printed = subprocess.run(["bash", "-c", command], capture_output=True, check=True).stdout
    assert printed.removeprefix(b"./") == name.encode(errors="surrogateescape")
    assert shell.join(["train", Path(name)]).isprintable()
