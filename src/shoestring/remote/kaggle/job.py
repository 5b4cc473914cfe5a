"""What the sessions of a chain are made of, and the kernel of each as the official client pushes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoestring.remote.kaggle.chain_file import ChainState, SessionRecord


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the sessions of a chain are made of."""

    script: Callable[[Mapping[str, Any]], str]
    """Returns the source of a kernel for the configuration of a session."""
    config: Mapping[str, Any]
    """The entries of the configuration that are the same in all sessions."""
    package: Mapping[str, bytes] = field(default_factory=dict)
    """The files of the package dataset, by name; none if it is empty."""
    package_digest: str = ""
    datasets: tuple[str, ...] = ()
    """Other datasets to attach, `owner/slug`."""
    accelerator: str | None = None
    """Kaggle's name of the machine; None: the machine that Kaggle chooses."""
    wait: bool = True
    """Whether to wait for the refresh of the quota."""


def hand_over_seconds(limit_seconds: float) -> float:
    """Return the end of a session that is reserved for leaving the output."""
    return min(300.0, limit_seconds / 20)


def session_config(state: ChainState, session: SessionRecord, job: Job) -> dict[str, Any]:
    """Return the configuration of a session's script."""
    return {
        **job.config,
        "format": 1,
        "nonce": session.nonce,
        "session": session.number,
        "limit_seconds": session.limit_seconds,
        "hand_over_seconds": hand_over_seconds(session.limit_seconds),
        "package": state.package,
        "package_digest": job.package_digest,
        "previous": session.previous,
    }


def kernel_metadata(state: ChainState, session: SessionRecord, job: Job) -> dict[str, Any]:
    """Return the content of `kernel-metadata.json`."""
    return {
        "id": state.kernel(session),
        "title": session.slug,
        "code_file": "script.py",
        "language": "python",
        "kernel_type": "script",
        "is_private": True,
        "enable_gpu": True,
        "enable_internet": state.internet,
        "dataset_sources": [*([state.package] if job.package else []), *job.datasets],
        "kernel_sources": [session.previous["kernel"]] if session.previous else [],
        "machine_shape": job.accelerator,
    }


def write_kernel(folder: Path, state: ChainState, session: SessionRecord, job: Job) -> None:
    """Write the kernel of a session as the official client pushes it."""
    (folder / "script.py").write_text(job.script(session_config(state, session, job)), encoding="utf-8")
    metadata = json.dumps(kernel_metadata(state, session, job), indent=1)
    (folder / "kernel-metadata.json").write_text(metadata, encoding="utf-8")
