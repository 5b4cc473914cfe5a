"""Reading a configuration from a file, a folder or, by name, from the hub, without running code from there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import transformers

from shoestring.base.errors import UsageError
from shoestring.base.reading import read_json
from shoestring.integrations.huggingface import diffusion
from shoestring.integrations.huggingface.library_errors import one_sentence
from shoestring.integrations.huggingface.versions import unread_positions

_POSITIVE = frozenset(
    {
        *("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size"),
        *("num_attention_heads", "num_key_value_heads", "head_dim"),
    }
)
"""The sizes of every model that are at least 1, by transformers' common names."""

_BOUNDS = (
    (re.compile(r"feature_layers?$"), -1000, 1000),  # counted from the last one
    (re.compile(r"layers?$|depths?$|blocks?$"), 0, 1000),
    (re.compile(r"experts?$"), 0, 4096),
    (re.compile(r"size$|dims?$|embd$|heads?$|^d_|vocab|width$|rank$|channels$|inner$"), -1, 2**24),
    (re.compile(r"positions?$|position_embeddings$"), -1, 2**31),
    (re.compile(""), -(2**53), 2**53),
)
"""Names of fields, with their least and their largest value: some ten times that of any published model. The first name
that matches decides; -1 may stand for none."""

_SPECIAL_NUMBERS = ("Infinity", "-Infinity", "NaN")


def read(source: str) -> Any:
    """Return the configuration as an object of transformers.

    Raises UsageError for an invalid file, a model type that this transformers does not support, a name on the hub that
    cannot be loaded, rotary positions that it would not use, and sizes that no model has.
    """
    path = Path(source)
    if path.is_dir():
        _require_no_adapter(path)
        path /= "config.json"
    if path.suffix == ".json":
        return _read_file(path)
    try:
        configuration = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
    except Exception as error:
        raise UsageError(
            f"the configuration of hf:{source} cannot be loaded: {one_sentence(error)}",
            hint="give the path of its config.json: hf:path/to/config.json",
        ) from error
    require_sizes(f"hf:{source}", configuration.to_dict(), type(configuration))
    require_read_positions(f"hf:{source}", configuration)
    return _with_start_token(configuration)


def _require_no_adapter(folder: Path) -> None:
    """Raise UsageError for a folder with peft's adapter alone, which is no model without its base."""
    if (folder / "config.json").exists() or not (folder / "adapter_config.json").exists():
        return
    base = ""
    with suppress(OSError, ValueError):
        values = read_json(folder / "adapter_config.json", follow=True, strict=False)
        base = str(values.get("base_model_name_or_path") or "") if isinstance(values, dict) else ""
    raise UsageError(
        f"{folder} has the adapter of a model{f' ({base})' if base else ''}, and not the model itself",
        hint="give the model's own folder; to continue with what the adapter has learned, merge it first: peft's "
        "AutoPeftModelForCausalLM.from_pretrained(FOLDER).merge_and_unload().save_pretrained(NEW_FOLDER)",
    )


def _read_file(path: Path) -> Any:
    try:
        values = _with_numbers(read_json(path, follow=True, strict=False))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} is no model configuration: {error}", hint="give the path of a model's config.json"
        ) from error
    if isinstance(values, dict) and isinstance(values.get("_class_name"), str):
        require_sizes(str(path), values, None)
        return diffusion.Configuration(values.pop("_class_name"), values)
    model_type = str(values.pop("model_type", None)) if isinstance(values, dict) else ""
    if model_type == "None":
        raise UsageError(
            f"{path} names no model_type, so it is not known which model it describes",
            hint="give a config.json with model_type (transformers) or _class_name (diffusers)",
        )
    if model_type not in transformers.CONFIG_MAPPING:
        raise UsageError(
            f"{path} has the model_type {model_type!r}, which transformers {transformers.__version__} does not support",
            hint="install a newer transformers; code that is distributed with a model is never run",
        )
    kind = transformers.CONFIG_MAPPING[model_type]
    require_sizes(str(path), values, kind)
    try:
        configuration = _with_start_token(kind.from_dict(values))
    except Exception as error:
        raise UsageError(
            f"{path} is no configuration of {model_type}: {one_sentence(error)}",
            hint="correct the field that it names",
        ) from error
    require_read_positions(str(path), configuration)
    return configuration


def require_read_positions(label: str, configuration: Any) -> None:
    """Raise UsageError for a configuration with rotary positions that this version of transformers would not use."""
    if parameters := unread_positions(configuration):
        raise UsageError(
            f"{label} has rope_parameters={parameters}, in which transformers 5 writes rotary positions: transformers "
            f"{transformers.__version__} does not read them, so the model would compute with other positions",
            hint="install transformers 5: pip install 'transformers>=5'",
        )


def _with_numbers(value: Any) -> Any:
    """Return a value of a JSON file with its numbers that JSON lacks.

    transformers 5 saves them as `{"__float__": "Infinity"}` (`configuration_utils.py: _encode_special_floats`).
    """
    if isinstance(value, dict):
        if value.keys() == {"__float__"} and value["__float__"] in _SPECIAL_NUMBERS:
            return float(value["__float__"])
        return {name: _with_numbers(item) for name, item in value.items()}
    return [_with_numbers(item) for item in value] if isinstance(value, list) else value


def _with_start_token(configuration: Any) -> Any:
    """Set the token that begins the decoder's input where a configuration lacks it: T5 begins with padding."""
    if configuration.is_encoder_decoder and getattr(configuration, "decoder_start_token_id", None) is None:
        padding = getattr(configuration, "pad_token_id", None)
        configuration.decoder_start_token_id = 0 if padding is None else padding
    return configuration


def require_sizes(source: str, values: Mapping[str, Any], kind: Any) -> None:
    """Raise UsageError that lists every size beyond its bounds: building its model would take hours or all memory."""
    common_names = {own: common for common, own in getattr(kind, "attribute_map", {}).items()}
    if problems := list(_size_problems(values, common_names)):
        raise UsageError(f"{source} is not the configuration of a model", problems=problems[:20])


def _size_problems(values: Mapping[str, Any], common_names: Mapping[str, str], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _size_problems(value, common_names, f"{prefix}{name}.")
            continue
        low, high = next((low, high) for pattern, low, high in _BOUNDS if pattern.search(str(name)))
        low = 1 if common_names.get(name, name) in _POSITIVE else low
        sizes = [size for size in (value if isinstance(value, list) else [value]) if _is_number(size)]
        if outside := [size for size in sizes if not low <= size <= high]:
            yield f"{prefix}{name}={str(outside[0])[:40]}: must be from {low} to {high}"


def _is_number(value: object) -> bool:
    """Return whether `value` is a number that bounds apply to; some configurations contain infinity as a time."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) != float("inf")
