"""Exceptions of a model's library as one sentence with a hint, and the hint that always helps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from shoestring.base.errors import ShoestringError, UsageError
from shoestring.base.packages.broken import broken_library

OWN_RECIPE = "write a recipe of your own: a file with model(), batch() and loss()"
"""The hint where `hf:` does not know what a model needs."""

_MOST_CHARACTERS = 300

_PACKAGE = re.compile(r"No module named '([\w-]+)|The '([\w-]+)' distribution|pip install ([\w-]+)")
"""The name of a missing package in messages of Python, of transformers and of its relatives."""


_UNAVAILABLE = re.compile(
    r"\b(trust_remote_code|ignore_mismatched_sizes|force_download|from_tf|from_flax|weights_only|use_fast|use_safetensors"
    r"|local_files_only|use_auth_token|token|device_map|offload_folder|low_cpu_mem_usage|legacy|chat_template)=\S"
    r"|\b(pass|passing|set|setting|provide|specify|use|using)\b.{0,40}`(\w+=\w+|trust_remote_code|ignore_mismatched_sizes"
    r"|force_download|from_tf|use_auth_token|token)`"
)
"""Sentences in which a library advises to pass an argument of one of its functions, which Shoestring calls."""
_REMOTE_CODE = "it needs code that is distributed with it, which is never run"


def without_advice(text: str) -> str:
    """Return the message of a library on one line, without sentences that advise what cannot be done here."""
    if "trust_remote_code" in text:
        return _REMOTE_CODE
    sentences = re.split(r"(?<=[.!?]) ", " ".join(text.split()))
    return " ".join(sentence for sentence in sentences if not _UNAVAILABLE.search(sentence)) or sentences[0]


def one_sentence(error: BaseException) -> str:
    """Return the type and the message of an exception on one line, without its later parts if it is long."""
    text = without_advice(str(error))
    text = text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} ..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextmanager
def explained(doing: str, hint: str) -> Iterator[None]:
    """Turn an exception of a library's code into a UsageError: `doing`, such as "BertModel cannot be built", and its
    hint.

    Passed on are errors of Shoestring, of memory, and those that say only that a tensor has no values, which tracing
    explains.
    """
    try:
        yield
    except (ShoestringError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        match = _PACKAGE.search(str(error)) if isinstance(error, ImportError) else None
        if match:  # an optional requirement of the library
            package = next(filter(None, match.groups()))
            raise UsageError(
                f"{doing}: it needs {package}, which cannot be imported ({one_sentence(error)})",
                hint=f"pip install {package}, then start again",
            ) from error
        if broken := broken_library(error):
            raise broken from error
        if isinstance(error, ImportError):
            raise UsageError(
                f"{doing}: it needs a package, which cannot be imported ({one_sentence(error)})",
                hint="pip install the package that it names, then start again",
            ) from error
        if _has_no_values(error):
            raise
        raise UsageError(f"{doing}: {one_sentence(error)}", hint=hint) from error


def hint_at_file(source: str) -> str:
    """Return the hint for a model that cannot be built: its file is wrong, or the installed library cannot build it."""
    return (
        f"if {source} was written or changed by hand, correct the field that this is about; a file as it was published "
        f"may need another version of the library, or choose another class with head=, or {OWN_RECIPE}"
    )


def hint_at_samples(model: nn.Module, batch: Mapping[str, Any]) -> str:
    """Return the hint for a model that cannot be run with a batch: which samples it got, and what else may be wrong."""
    packed = any(parameter.dtype == torch.uint8 for parameter in model.parameters())
    forms = ", ".join(
        f"{name} {'×'.join(map(str, value.shape))}" for name, value in batch.items() if isinstance(value, torch.Tensor)
    )
    parts = [
        "its code may read a weight that is packed in 4 bits: try without quantization=nf4" if packed else "",
        f"hf: gave it {forms or 'no tensors'}: a class that takes other inputs needs a recipe of your own, a file with "
        "model(), batch() and loss(); or choose another class with head=, or another length with seq_len=",
        "only a configuration that was written by hand may have sizes that do not match",
    ]
    return "; ".join(part for part in parts if part)


def _has_no_values(error: Exception) -> bool:
    """Return whether the error is about the simulated device or the meta device."""
    return type(error).__module__.startswith("torch._subclasses") or (
        isinstance(error, NotImplementedError | RuntimeError | ValueError)
        and re.search(r"\bmeta\b", str(error).lower()) is not None
    )
