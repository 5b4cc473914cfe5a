"""Directories of runs on a T4 with what a measurement reads: a plan and events."""

import json
from datetime import UTC, datetime

from shoestring.base.units import GIB, MIB
from shoestring.hardware.catalog import DEVICES

T4 = DEVICES["t4"]
NOW = datetime.now(UTC).timestamp()
PARAMETERS = {"total": 9_000_000, "trainable": 9_000_000}


def plan(probe=None):
    return {
        "recipe": "legal",
        "reference": "legal",
        "options": {"size": "full", "data": "/home/ann/secret.csv", "epochs": 2, "effective_batch": 32, "lora_r": None},
        "plan": {
            "memory": {
                "settings": {"micro_batch": 32, "precision": "fp16", "offload": "no", "fp32_modules": "secret.head"},
                "reserved": {"value": 900 * MIB, "low": 800 * MIB, "high": 1000 * MIB},
                "peak_bytes": 1100 * MIB,
                "low_bytes": 1000 * MIB,
                "high_bytes": 1200 * MIB,
                "parts": [{"name": "weights", "bytes": 36_000_000, "source": "trace"}],
            },
            "time": {"update_seconds": 0.2, "low_update_seconds": 0.1, "high_update_seconds": 0.3},
            "job": {"parts": [{"name": "starting", "seconds": 20.0, "low_seconds": 10.0, "high_seconds": 30.0}]},
            **({"measured": {"predicted": probe}} if probe else {}),
        },
    }


def session(number, first_update, gpu=T4.title, time=NOW, **machine):
    """Return the events of a session of 21 updates, of which the first takes ten times as long."""
    common = {"time": time, "session": number}
    opening = {
        **common,
        "event": "session",
        "update": first_update,
        "startup_seconds": 25.0,
        "device": "cuda:0",
        "parameters": PARAMETERS,
        "micro_batch": 32,
        "processes": 1,
        "versions": {"shoestring": "0.2.0", "python": "3.12.3", "torch": "2.10.0"},
        "machine": {
            "system": "Linux-of-ann",
            "cpu": "Xeon",
            "cores": 4,
            "ram_bytes": 31 * GIB,
            "driver": "580.1",
            "gpus": [{"name": gpu, "memory_bytes": T4.memory_bytes}],
            **machine,
        },
    }
    progress = [
        {
            "update": first_update + done,
            "epoch": 1,
            "updates": count,
            "seconds": count * seconds,
            "memory_bytes": bytes_,
        }
        for done, count, seconds, bytes_ in (
            (1, 1, 2.0, 800 * MIB),
            (11, 10, 0.25, 920 * MIB),
            (21, 10, 0.23, 920 * MIB),
        )
    ]
    stop = {**common, "event": "stop", "update": first_update + 21, "status": "paused", "seconds": 40.0}
    return [opening, *({**common, "event": "progress", **values} for values in progress), stop]


def directory(path, events, stored=None):
    path.mkdir()
    (path / "plan.json").write_text(json.dumps(stored or plan()))
    (path / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    return path
