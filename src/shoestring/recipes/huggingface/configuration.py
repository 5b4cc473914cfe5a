"""Reading a configuration from a file, a folder or, by name, from the hub, without running code from there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transformers

from shoestring.errors import UsageError


def read(source: str) -> Any:
    """Return the configuration as an object of transformers.

    Raises UsageError for an invalid file, a model type that this transformers does not support, and a name on the hub
    that cannot be loaded.
    """
    path = Path(source)
    if path.is_dir():
        path /= "config.json"
    if path.suffix == ".json":
        return _read_file(path)
    try:
        return transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the configuration of hf:{source} cannot be loaded: {str(error).splitlines()[0]}",
            hint="give the path of its config.json: hf:path/to/config.json",
        ) from error


def _read_file(path: Path) -> Any:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} is no model configuration: {error}", hint="give the path of a model's config.json"
        ) from error
    model_type = str(values.pop("model_type", None)) if isinstance(values, dict) else ""
    if model_type not in transformers.CONFIG_MAPPING:
        raise UsageError(
            f"{path} has the model_type {model_type!r}, which transformers {transformers.__version__} does not support",
            hint="install a newer transformers; code that is distributed with a model is never run",
        )
    return transformers.CONFIG_MAPPING[model_type].from_dict(values)


def find_model_class(configuration: Any) -> Any:
    """Return the model class that `architectures` names, by default that of a causal language model."""
    for name in configuration.architectures or ():
        model_class = getattr(transformers, name, None)
        if model_class is not None:
            return model_class
    return transformers.AutoModelForCausalLM
