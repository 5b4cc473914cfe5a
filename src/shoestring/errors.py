"""The errors that Shoestring raises, under the name that code outside imports."""

from typing import TYPE_CHECKING

from shoestring.base.errors import (
    CheckpointError,
    DataError,
    Interruption,
    RunError,
    ShoestringError,
    TraceError,
    UsageError,
)
from shoestring.base.renamed import attributes_of

__all__ = [
    "CheckpointError",
    "DataError",
    "Interruption",
    "RunError",
    "ShoestringError",
    "TraceError",
    "UsageError",
]
if not TYPE_CHECKING:
    __getattr__ = attributes_of("shoestring.base.errors")
