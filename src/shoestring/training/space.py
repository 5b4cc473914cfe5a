"""The disk space that a session needs, checked before it trains."""

import shutil
from typing import Any

from shoestring.base.errors import RunError
from shoestring.base.run_limits import disk_parts
from shoestring.base.settings import Settings
from shoestring.base.units import bytes_text
from shoestring.training.checkpoint.files import directory_bytes
from shoestring.training.request import SessionRequest


def require_space(request: SessionRequest, update: int, checkpoint_bytes: int) -> None:
    """Raise RunError if the disk, or the limit of the run's directory, cannot hold what the session will write.

    For a run that begins, this is everything that the plan counts: the state of an optimizer exists only after the
    first update, so that the first checkpoint is too small to show it. For a run that continues after `update`, it is
    one more checkpoint of `checkpoint_bytes`, the size of its newest one: all other saves are retried while it trains.
    """
    run = request.run
    used_bytes = directory_bytes(run.path)
    try:
        available_bytes = used_bytes + shutil.disk_usage(run.path).free
    except OSError:
        return  # the first save shows it
    available = f"the disk of {run.path} has {bytes_text(available_bytes)} for it"
    remedy = "free disk space there"
    if request.disk_bytes is not None and request.disk_bytes < available_bytes:
        available_bytes = request.disk_bytes
        available, remedy = (
            f"the disk limit of the run is {bytes_text(available_bytes)}",
            "set a higher limit: --disk SIZE",
        )
    if update:
        expendable_bytes = directory_bytes(run.light)
        parts = {
            "the run's files": used_bytes - expendable_bytes,
            "a checkpoint that is being written": checkpoint_bytes,
        }
    else:
        parts = _planned_parts(request)
    required_bytes = sum(parts.values())
    if required_bytes > available_bytes:
        raise RunError(
            f"the run needs {bytes_text(required_bytes)} of disk space, but {available}",
            problems=[f"{name}: {bytes_text(size)}" for name, size in parts.items()],
            hint=_fewer(remedy, request.settings),
        )


def _fewer(remedy: str, settings: Settings) -> str:
    """Return the hint, with the settings by which files are fewer or smaller."""
    flags = [f"--set save_epochs={2 * settings.save_epochs}"] if settings.save_epochs else []
    flags += ["--set keep_checkpoints=1"] if settings.keep_checkpoints != 1 else []
    flags += ["--set light_weights=fp16"] if settings.light_weights in (None, "own") else []
    return f"{remedy}, or keep fewer and smaller files: {' '.join(flags)}" if flags else remedy


def _planned_parts(request: SessionRequest) -> dict[str, int]:
    """Return the planned sizes with the present settings; none for a script, which has no plan."""
    plan = request.run.plan()
    planned: Any = (plan.plan or {}).get("disk") if plan else None
    if not isinstance(planned, dict):
        return {}
    full_bytes, light_bytes = planned.get("full_checkpoint_bytes"), planned.get("light_checkpoint_bytes")
    if not isinstance(full_bytes, int) or not isinstance(light_bytes, int):
        return {}
    epochs = planned.get("epochs")  # not in plans of earlier versions, nor the setting that needs it
    return disk_parts(full_bytes, light_bytes, request.settings, epochs if isinstance(epochs, int) else 1)
