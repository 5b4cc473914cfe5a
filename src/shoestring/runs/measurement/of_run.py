"""The content of a measurement: what a run was predicted to need, beside what it needed.

It has no path, no name of data or of a host, no text of the recipe, and of the time only the day.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from shoestring.base.errors import UsageError
from shoestring.base.reading import number, read_blocks
from shoestring.recipe.adaptation import Adaptation
from shoestring.recipe.installed import built_in_names
from shoestring.training.checkpoint.files import json_digest, with_digest
from shoestring.training.monitor import events as record
from shoestring.training.monitor.events import Event
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.stored import StoredPlan
from shoestring.training.session.ledger import SessionRecord, sessions

FORMAT, VERSION = "shoestring measurement", 1
OWN = "own"
"""The name of every recipe that is not built-in."""
CPU = "cpu"
_ADAPTATION = frozenset(field.name for field in dataclasses.fields(Adaptation)) - {"lora_targets"}
_SHARED_OPTIONS = _ADAPTATION | {"effective_batch", "epochs", "rows", "row_tokens"}
"""The options that any recipe has. The names of others say something about a recipe of somebody's own."""
_PUBLIC_TEXTS = _ADAPTATION | {"size", "architecture"}
"""The options whose value may be a text: one of a few words. A text of any other option may name data."""
_PRIVATE = frozenset({"fp32_modules"})
"""Settings that name modules of a recipe."""
_FEWEST_UPDATES = 3
_HINT = "train the run for a few more updates first"


def measurement_of(path: Path) -> dict[str, Any]:
    """Return the measurement of the run in the directory `path`, with its digest.

    Raises UsageError if there is no run, if nothing was predicted, or if too few updates were made.
    """
    directory = RunDirectory(path)
    directory.refuse_links()
    plan = directory.plan()
    if plan is None:
        raise UsageError(f"{path} has no plan.json, so nothing was predicted", hint="pass the directory of a run")
    if not plan.plan or not isinstance(plan.plan.get("memory"), Mapping):
        raise UsageError(
            f"{path}: the run has a trainer of its own or a recipe that could not be traced, so nothing was predicted"
        )
    state = directory.state()
    all_events = list(record.read(directory.events_file)) if directory.events_file.exists() else []
    opening = next((event for event in all_events if event["event"] == "session"), None)
    if opening is None:
        raise UsageError(f"{path}: no session of the run has begun to train", hint=_HINT)
    same_device = _on_same_device(all_events, opening)
    events = record.current(same_device)
    updates = _steady_updates(events)
    if sum(count for count, _ in updates) < _FEWEST_UPDATES:
        raise UsageError(
            f"{path}: the run has made fewer than {_FEWEST_UPDATES} updates after the first one of a session",
            hint=_HINT,
        )
    return with_digest(
        {
            "format": FORMAT,
            "version": VERSION,
            "date": datetime.fromtimestamp(opening["time"], UTC).date().isoformat(),
            "versions": {name: str(value) for name, value in opening.get("versions", {}).items()},
            "device": _device(opening),
            "recipe": _recipe(plan, opening),
            "predicted": _predicted(plan.plan, is_gpu=opening.get("device") != CPU),
            "measured": _measured(events, updates, sessions(same_device, state.status if state else "")),
            "record": {
                "events": len(all_events),
                "events_sha256": _file_digest(directory.events_file),
                "plan_sha256": json_digest(plan.plan),
            },
        }
    )


def _on_same_device(events: Sequence[Event], opening: Event) -> list[Event]:
    """Return the events of the sessions that trained on the device, and with as many processes, as the first one."""
    numbers = {
        event["session"]
        for event in events
        if event["event"] == "session"
        and (_device(event), event.get("micro_batch")) == (_device(opening), opening.get("micro_batch"))
    }
    return [event for event in events if event["session"] in numbers]


def _device(opening: Event) -> dict[str, Any]:
    machine = opening.get("machine", {})
    gpus = machine.get("gpus") or []
    is_gpu = opening.get("device") != CPU and bool(gpus)
    return {
        "name": gpus[0]["name"] if is_gpu else CPU,
        "memory_bytes": gpus[0]["memory_bytes"] if is_gpu else machine.get("ram_bytes", 0),
        "processes": opening.get("processes", 1),
        "driver": str(machine.get("driver") or ""),
        "cpu": str(machine.get("cpu") or ""),
        "cores": machine.get("cores", 0),
        "ram_bytes": machine.get("ram_bytes", 0),
        "simulated": bool(machine.get("simulated", False)),
    }


def _recipe(plan: StoredPlan, opening: Event) -> dict[str, Any]:
    """Return what decides the amount of work; of a recipe that is not built-in only the options that all have."""
    assert plan.plan is not None
    is_built_in = plan.recipe == plan.reference and plan.recipe in built_in_names()
    settings = plan.plan["memory"].get("settings", {})
    return {
        "name": plan.recipe if is_built_in else OWN,
        "options": {
            name: value
            for name, value in (plan.options or {}).items()
            if (is_built_in or name in _SHARED_OPTIONS) and _is_public(name, value)
        },
        "settings": {name: value for name, value in settings.items() if value is not None and name not in _PRIVATE},
        "parameters": dict(opening.get("parameters", {})),
    }


def _is_public(name: str, value: object) -> bool:
    return isinstance(value, bool | int | float) or (isinstance(value, str) and name in _PUBLIC_TEXTS)


def _predicted(plan: Mapping[str, Any], *, is_gpu: bool) -> dict[str, Any]:
    """Return what was predicted before anything was measured on the device, and of the run as a whole."""
    probe = plan.get("measured") or {}
    memory, time = plan["memory"], plan.get("time") or {}
    if before := probe.get("predicted"):
        memory, time = before, before
    reserved = memory.get("reserved") if is_gpu else None
    names = ("value", "low", "high") if reserved else ("peak_bytes", "low_bytes", "high_bytes")
    return {
        "memory": _range(reserved or memory, *names),
        "update": _range(time, "update_seconds", "low_update_seconds", "high_update_seconds"),
        "memory_parts": {part["name"]: part["bytes"] for part in plan["memory"].get("parts", [])},
        "run": {
            part["name"]: _range(part, "seconds", "low_seconds", "high_seconds")
            for part in (plan.get("job") or {}).get("parts", [])
        },
        "probed": bool(probe),
    }


def _range(values: Mapping[str, Any], value: str, low: str, high: str) -> dict[str, Any]:
    return {"value": values.get(value), "low": values.get(low), "high": values.get(high)}


def _steady_updates(events: Sequence[Event]) -> list[tuple[int, float]]:
    """Return the number and the mean seconds of the updates of each progress event but the first of each session,
    which has one-time work."""
    updates = []
    is_first = True
    for event in events:
        if event["event"] == "session":
            is_first = True
        elif event["event"] == "progress":
            count, seconds = event.get("updates", 0), number(event.get("seconds"))
            if not is_first and count and seconds:
                updates.append((count, seconds / count))
            is_first = False
    return updates


def _measured(
    events: Sequence[Event], updates: Sequence[tuple[int, float]], session_records: Sequence[SessionRecord]
) -> dict[str, Any]:
    seconds = sorted(mean for count, mean in updates for _ in range(count))
    progress = [event for event in events if event["event"] == "progress"]
    saves = [event for event in events if event["event"] == "save" and event.get("kind") == "full"]
    evaluations = [event for event in events if event["event"] == "evaluation"]
    return {
        "memory_bytes": max(event.get("memory_bytes") or 0 for event in progress),
        "update": {"value": median(seconds), "low": seconds[len(seconds) // 10], "high": seconds[-len(seconds) // 10]},
        "updates": len(seconds),
        "waiting_seconds": sum(event.get("waiting_seconds", 0.0) for event in progress),
        "out_of_memory": sum(event["event"] == "oom" for event in events),
        "starting_seconds": [event.get("startup_seconds", 0.0) for event in events if event["event"] == "session"],
        "saving": {"count": len(saves), "seconds": _total(saves, "seconds"), "bytes": _total(saves, "bytes")},
        "evaluating": {"count": len(evaluations), "seconds": _total(evaluations, "seconds")},
        "sessions": [
            {"seconds": session.seconds, "updates": session.updates, "ended": session.ended}
            for session in session_records
        ],
    }


def _total(events: Iterable[Event], key: str) -> float:
    return sum(number(event.get(key)) or 0.0 for event in events)


def _file_digest(path: Path) -> str:
    digest = hashlib.sha256()
    for block in read_blocks(path, follow=False):
        digest.update(block)
    return digest.hexdigest()
