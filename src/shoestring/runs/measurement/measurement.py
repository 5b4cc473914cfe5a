"""A measurement as an answer, which displays itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoestring.base.display import Displayed


@dataclass(frozen=True, kw_only=True)
class Measurement(Displayed):
    """What a run was predicted to need and what it needed."""

    content: dict[str, Any]
    """The content of the file (`of_run.py`)."""
    out: str = ""
    """The file that was written; empty if none was."""
    checked: str = ""
    """The file that was checked; empty for the measurement of a run."""

    def json(self) -> dict[str, Any]:
        """Return the content of the file.

        Keys:
            format (text): `shoestring measurement`.
            version (integer): the version of the format.
            date (text): the day on which the run began, in ISO 8601.
            versions (object of texts): the versions of `shoestring`, `python` and `torch`.
            device (object): the device that trained: `name`, `memory_bytes`, `driver`, `processes` that
                trained together, `simulated`, and the machine's `cpu`, `cores` and `ram_bytes`.
            recipe (object): `name` (`own` unless it is built-in), `options` without texts that could name
                data, `settings`, and `parameters`.
            predicted (object): `memory` and `update` (seconds), each with `value`, `low` and `high`;
                `memory_parts`; the seconds of the whole `run` by part; `probed`: whether a plan measured
                updates afterwards.
            measured (object): `memory_bytes` (reserved by PyTorch; on a CPU of the process), the seconds of
                an `update`, the number of `updates` that these are of, `waiting_seconds`, `out_of_memory`
                (how often), `starting_seconds`, `saving`, `evaluating`, `sessions`.
            record (object): the number of `events` of the run, and the digests `events_sha256` and
                `plan_sha256`.
            sha256 (text): the digest of all that, by which a changed file is recognized.
        """
        return self.content
