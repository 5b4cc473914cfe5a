"""The source of the script kernel: one line with its configuration, then the program, which is the same for all.

The program runs where Shoestring is not installed yet, so its modules, `program/`, are joined into one file in which a
person can read on Kaggle what the session does.

The configuration is a JSON object:

    format, nonce (32 hexadecimal digits, new for each session), session (from 1)
    recipe             the name of a recipe, or a path in `files`
    extras             the extras of Shoestring that it requires
    python             the version of Python that the wheels are for
    files, digests     the recipe's files, compressed, and their SHA-256, by path
    set                the options and settings of the command
    data               {dataset, path} of the training data, or null
    on                 the target
    limit_seconds      from the start of the script to its end; `hand_over_seconds` of it are kept to leave the output
    output_bytes       the limit of the output
    package, package_digest   the dataset with the wheels, and the digest that its list of files must have; any if it
                       is empty: Kaggle may still mount the version before
    previous           {kernel, nonce} of the session whose output is continued, or null
    internet           whether the index of packages may be asked
    arguments          more arguments of `shoestring train`
"""

import ast
import base64
import hashlib
import json
import zlib
from collections.abc import Mapping
from importlib.resources import files as resources
from typing import Any

from shoestring.base.errors import UsageError
from shoestring.base.units import KIB, MIB, bytes_text

MAX_BYTES = MIB - KIB
"""Kaggle refuses a source of more than 1 MiB, the larger ones without a reason; a part is left for the request."""
MODULES = (
    "places",
    "files",
    "printed",
    "session",
    "inputs",
    "installation",
    "machine",
    "recipe",
    "checkpoints",
    "previous",
    "training",
    "output",
    "main",
)
"""The modules of the program. Each imports only from those before it."""


def embedded(files: Mapping[str, bytes]) -> dict[str, dict[str, str]]:
    """Return the entries of the configuration that carry a recipe's files, by their path."""
    return {
        "files": {path: base64.b64encode(zlib.compress(content, 9)).decode() for path, content in files.items()},
        "digests": {path: hashlib.sha256(content).hexdigest() for path, content in files.items()},
    }


def program() -> str:
    """Return the modules of `program/` as one, without their imports of each other: they share its names."""
    texts = []
    for name in ("__init__", *MODULES):
        text = resources(__package__).joinpath(f"program/{name}.py").read_text(encoding="utf-8")
        lines = text.splitlines(keepends=True)
        for node in ast.parse(text).body:
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith(f"{__package__}.program"):
                lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)  # type: ignore[operator]
        texts.append("".join(lines))
    return "\n\n".join(texts)


def make_script(config: Mapping[str, Any]) -> str:
    """Return the source of the kernel that does what `config` says.

    Raises UsageError if it is larger than Kaggle accepts.
    """
    text = json.dumps(config, allow_nan=False)
    source = f"import json\n\nCONFIG = json.loads({text!r})\n\n{program()}"
    if (size := len(source.encode())) > MAX_BYTES:
        largest = sorted(((len(content), path) for path, content in config["files"].items()), reverse=True)[:5]
        raise UsageError(
            f"the script for Kaggle has {bytes_text(size)}, but Kaggle accepts at most {bytes_text(MAX_BYTES)}",
            problems=[f"{path} takes {bytes_text(length)} in it, compressed" for length, path in largest],
            hint="keep large data out of the files that the recipe imports: put it into a dataset, for --data",
        )
    return source
