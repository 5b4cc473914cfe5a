"""Traces that are stored as they are made, so that a plan which was interrupted continues with those that it has."""

import hashlib
import importlib.metadata
import json
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shoestring.base import config
from shoestring.base.reading import parse_json, read_bytes
from shoestring.planning.trace.record import Facts, Trace
from shoestring.recipe.options import LoadedRecipe
from shoestring.version import __version__

_MAX_BYTES = 1 << 30


class StoredTraces:
    """The traces of one recipe in the file `path`, by the digest of all that determines a trace.

    Each line is the SHA-256 of a JSON object, a space, and the object. The file only saves time, so one that cannot be
    read or written is ignored.
    """

    def __init__(self, path: Path, loaded: LoadedRecipe) -> None:
        self._path = path
        self._subject = [
            __version__,
            importlib.metadata.version("torch"),
            loaded.reference,
            loaded.digest,
            dict(loaded.imports),
            config.as_json(loaded.options),
        ]
        self._is_repeatable = bool(loaded.reference)  # a live object may change between two sessions
        self._traces: dict[str, dict[str, Any]] = {}
        if self._is_repeatable:
            self._read()

    def get(self, facts: Facts, request: dict[str, Any]) -> Trace | None:
        """Return the stored trace of a request for a recipe with these facts; None if there is none."""
        values = self._traces.get(self._key(facts, request))
        return Trace.from_json(values) if values else None

    def add(self, facts: Facts, request: dict[str, Any], trace: Trace) -> None:
        """Store the trace of a request."""
        if not self._is_repeatable:
            return
        entry = json.dumps({"key": self._key(facts, request), "trace": trace.json()}, allow_nan=False).encode()
        with suppress(OSError):
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(self._path, flags, 0o644)
            try:
                os.write(descriptor, _digest(entry) + b" " + entry + b"\n")
            finally:
                os.close(descriptor)

    def _key(self, facts: Facts, request: dict[str, Any]) -> str:
        """Return the digest of a request. The facts stand for the data, which may change between two sessions."""
        facts_of_data = {**asdict(facts), "process_bytes": None}  # measured, so different in each process
        return _digest(json.dumps([self._subject, facts_of_data, request], sort_keys=True).encode()).decode()

    def _read(self) -> None:
        with suppress(OSError, ValueError):
            for line in read_bytes(self._path, follow=False, max_bytes=_MAX_BYTES).splitlines():
                digest, _, entry = line.partition(b" ")
                if digest == _digest(entry):  # a line that was being written when the process was killed is incomplete
                    values = parse_json(entry)
                    self._traces[values["key"]] = values["trace"]


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
