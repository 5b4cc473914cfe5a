"""Settings that decide the bits of a run, stored with the run: the sessions that follow need not be told them again."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shoestring.base.system_errors import explaining
from shoestring.training.processes.steps import by_first
from shoestring.training.request import SessionRequest

OF_THE_RESULT = (
    "micro_batch",
    "precision",
    "checkpointing",
    "optimizer_kernel",
    "memory_format",
    "offload",
    "packing",
    "compile",
    "sharding",
    "fp32_modules",
    "cudnn_benchmark",
    "tf32",
)
"""The settings that `engine.environment` compares with those of the checkpoint."""


def store_settings_of_result(request: SessionRequest) -> None:
    """Store the settings of a session that decide its bits, where they differ from the stored ones."""
    values = request.settings.json()
    store_settings(request, {name: values[name] for name in OF_THE_RESULT})


@by_first
def store_settings(request: SessionRequest, values: Mapping[str, Any]) -> None:
    """Store settings in plan.json, from which later sessions and every use of the weights read them.

    The run of a script with a trainer of its own stores no settings.
    """
    run = request.run
    stored = run.plan()
    settings = (stored.plan or {}).get("settings") if stored else None
    if stored and isinstance(settings, dict) and any(settings.get(name) != value for name, value in values.items()):
        plan = {**(stored.plan or {}), "settings": {**settings, **values}}
        with explaining(f"{run.plan_file} could not be written", ", then train again"):
            replace(stored, plan=plan).write(run.plan_file)
