"""Reading a configuration: a file, a folder or a name on the hub. Never code from there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transformers

from shoestring.errors import UsageError


def read(source: str) -> Any:
    """The configuration as transformers has it.

    Raises UsageError for a file that is none, a kind of model this transformers does not know, and a name that
    cannot be reached.
    """
    path = Path(source)
    if path.is_dir():
        path /= "config.json"
    if path.suffix == ".json":
        return _from_file(path)
    try:
        return transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"hf:{source} could not be read: {str(error).splitlines()[0]}",
            hint="give its config.json as a file: hf:path/to/config.json",
        ) from error


def _from_file(path: Path) -> Any:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is no configuration: {error}", hint="hf: takes a model's config.json") from error
    kind = str(values.pop("model_type", None)) if isinstance(values, dict) else ""
    if kind not in transformers.CONFIG_MAPPING:
        raise UsageError(
            f"{path} has the model_type {kind!r}, which transformers {transformers.__version__} does not know",
            hint="a newer transformers may; code that comes with a model is never run",
        )
    return transformers.CONFIG_MAPPING[kind].from_dict(values)


def model_class(configuration: Any) -> Any:
    """The class that `architectures` declares; a causal language model where it says nothing."""
    for name in configuration.architectures or ():
        kind = getattr(transformers, name, None)
        if kind is not None:
            return kind
    return transformers.AutoModelForCausalLM
