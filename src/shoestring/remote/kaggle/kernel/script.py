"""The source of the script kernel: one line with its configuration, then the program, which is the same for all."""

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files as resources
from typing import Any

from shoestring.errors import UsageError
from shoestring.units import KIB, MIB, bytes_text

FORMAT = 1
MAX_BYTES = MIB - KIB
"""Kaggle refuses a source of more than 1 MiB, the larger ones without a reason; a part is left for the request."""
LEFT_TO_HAND_OVER = 300

_NONCE = re.compile(r'^CONFIG = json\.loads\(.*?\\?"nonce\\?": ?\\?"([0-9a-f]{32})\\?"', re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """Where the training data is."""

    dataset: str
    """`owner/slug`."""
    path: str = ""
    """A path below it; empty for the data set as a whole."""


@dataclass(frozen=True, kw_only=True)
class Previous:
    """The output that a session continues from."""

    kernel: str
    """`owner/slug`."""
    nonce: str
    """The nonce of the session that left it."""


@dataclass(frozen=True, kw_only=True)
class KernelConfig:
    """What a session has to do."""

    nonce: str
    """32 hexadecimal digits, new for each session."""
    session: int
    """From 1."""
    recipe: str
    """A built-in name, or a path in `files`."""
    on: str
    limit_seconds: float
    """From the start of the script to its end."""
    package: str
    """The data set with the wheels, `owner/slug`."""
    package_digest: str = ""
    """The digest that its list of files must have; any if empty. Kaggle may still mount the version before."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """The recipe's files, by their path."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The values of `--set`."""
    data: DataSet | None = None
    previous: Previous | None = None
    hand_over_seconds: float | None = None
    """Kept for leaving the output; by default 300 s, or a twentieth of the limit."""
    output_bytes: int = 20_000_000_000
    """The limit of the output."""
    internet: bool = True
    arguments: tuple[str, ...] = ()
    """More arguments of `shoestring train`."""

    def as_json(self) -> dict[str, Any]:
        """Return the configuration as the program reads it."""
        data, previous, hand_over = self.data, self.previous, self.hand_over_seconds
        return {
            "format": FORMAT,
            "nonce": self.nonce,
            "session": self.session,
            "recipe": self.recipe,
            "files": {
                path: base64.b64encode(zlib.compress(content, 9)).decode() for path, content in self.files.items()
            },
            "digests": {path: hashlib.sha256(content).hexdigest() for path, content in self.files.items()},
            "set": dict(self.options),
            "data": data and {"dataset": data.dataset, "path": data.path},
            "on": self.on,
            "limit_seconds": self.limit_seconds,
            "hand_over_seconds": min(LEFT_TO_HAND_OVER, self.limit_seconds / 20) if hand_over is None else hand_over,
            "output_bytes": self.output_bytes,
            "package": self.package,
            "package_digest": self.package_digest,
            "previous": previous and {"kernel": previous.kernel, "nonce": previous.nonce},
            "internet": self.internet,
            "arguments": list(self.arguments),
        }


def make_script(config: KernelConfig | Mapping[str, Any]) -> str:
    """Return the source of the kernel that does what `config` (or its JSON) says.

    Raises UsageError if it is larger than Kaggle accepts.
    """
    values = config.as_json() if isinstance(config, KernelConfig) else config
    program = resources(__package__).joinpath("program.py").read_text(encoding="utf-8")
    text = json.dumps(values, allow_nan=False)
    source = f"import json\n\nCONFIG = json.loads({text!r})\n\n{program}"
    if (size := len(source.encode())) > MAX_BYTES:
        largest = sorted(((len(content), path) for path, content in values["files"].items()), reverse=True)[:5]
        raise UsageError(
            f"the script for Kaggle has {bytes_text(size)}, but Kaggle accepts at most {bytes_text(MAX_BYTES)}",
            problems=[f"{path} takes {bytes_text(length)} in it, compressed" for length, path in largest],
            hint="keep large files out of the recipe's folder: put them into a data set and name it by --data",
        )
    return source


def nonce_of(source: str) -> str | None:
    """Return the nonce of the session that a kernel's source is of; None for the source of another program."""
    match = _NONCE.search(source)
    return match[1] if match else None
